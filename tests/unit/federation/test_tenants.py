"""One tenant: what it sees, what it may, how it blends, and the name of what it keeps."""

import pytest

from app.federation.tenants import Tenant, role_of, tenant_of
from app.protocol.errors import Unauthorized
from app.settings.schema import FusionSettings
from app.settings.tenants_file import TenantEntry


@pytest.mark.parametrize(
    ("patterns", "seen"),
    [
        ((), set()),
        (("docs",), {"docs"}),
        (("doc*",), {"docs", "docs/inner"}),
        (("*",), {"docs", "docs/inner", "Code-1", "code-2"}),
        (("code-?",), {"code-2"}),
        (("[Cc]ode-[12]",), {"Code-1", "code-2"}),
        (("docs/*",), {"docs/inner"}),
    ],
)
def test_engines_are_seen_by_pattern(patterns: tuple[str, ...], seen: set[str]) -> None:
    """Ids as they are, case and all; `*` goes over `/` as well."""
    tenant = Tenant("a", patterns)
    assert {name for name in ("docs", "docs/inner", "Code-1", "code-2") if tenant.sees(name)} == seen


@pytest.mark.parametrize(
    ("method", "role"),
    [
        ("info", None),
        ("ping", None),
        ("no/method", None),
        ("notifications/cancel", None),
        ("retrieve", "read"),
        ("memory/recall", "read"),
        ("memory/build", "write"),
        ("index/add", "write"),
        ("feedback", "feedback"),
        ("x-acme/rank", "write"),
    ],
)
def test_roles_of_methods(method: str, role: str | None) -> None:
    """Reading is apart from writing, and a vendor's method may do anything."""
    assert role_of(method) == role
    Tenant("a", roles=frozenset({role or "read"})).check(method)
    if role is not None:
        with pytest.raises(Unauthorized, match=role):
            Tenant("a", roles=frozenset({"admin"})).check(method)


def test_the_blend_is_the_gateways_but_for_what_is_said() -> None:
    """What a tenant leaves out of `fusion` is as in the settings; without any it has none of its own."""
    blend = FusionSettings(rrf_k=30, confidence_weight=0.1)
    own = tenant_of("a", TenantEntry.model_validate({"fusion": {"confidence_weight": 0.5}}), blend)
    assert own.fusion == FusionSettings(rrf_k=30, confidence_weight=0.5)
    assert tenant_of("a", TenantEntry(), blend).fusion is None


def test_what_is_kept_is_named_after_what_is_seen() -> None:
    """The scope is the same for the same engines however they are listed, and another for others or another tenant."""
    entries = [TenantEntry(engines=list(engines)) for engines in (("a", "b"), ("b", "a", "a"), ("a",))]
    first, same, fewer = (tenant_of("x", entry, FusionSettings()).scope for entry in entries)
    assert first == same != fewer
    assert first.startswith("x:")
    assert tenant_of("y", entries[0], FusionSettings()).scope != first
