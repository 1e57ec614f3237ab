"""Method names and the capabilities that gate them."""

import pytest
from rcp import Method
from rcp._types import CAP_FOR_METHOD

from app.protocol.method_names import GATES, PROTOCOL_VERSION, UNGATED, gate_of


def test_gates_agree_with_the_published_sdk() -> None:
    """Every method is gated by the capability that the published SDK names for it."""
    assert dict(GATES) == {method: capability.value for method, capability in CAP_FOR_METHOD.items()}


def test_ungated_methods_need_no_capability() -> None:
    """initialize, info, ping and shutdown are always there and have no gate."""
    assert {Method.INITIALIZE, Method.INFO, Method.PING, Method.SHUTDOWN} == UNGATED
    assert all(gate_of(method) is None for method in UNGATED)


@pytest.mark.parametrize(
    ("method", "capability"),
    [
        ("retrieve", "retrieve"),
        ("embed/sparse", "sparseEmbed"),
        ("catalog/list", "catalog"),
        ("x-acme/rank", "x-acme"),
        ("x-acme/rank/v2", "x-acme"),
    ],
)
def test_method_has_its_gate(method: str, capability: str) -> None:
    """A method of RCP has its capability, and a vendor's method the vendor's."""
    assert gate_of(method) == capability


@pytest.mark.parametrize(
    "method", ["does/not/exist", "Retrieve", "retrieve/", "x-", "x-acme", "x-acme/", "x-/rank", "x/rank", "", "graph/x"]
)
def test_anything_else_is_no_method(method: str) -> None:
    """What is neither RCP's nor a complete vendor name has no gate."""
    assert gate_of(method) is None


def test_protocol_version_is_the_first() -> None:
    """We speak version 1."""
    assert PROTOCOL_VERSION == 1
