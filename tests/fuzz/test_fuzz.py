"""A short run of what `make fuzz` does at length, and proof that it notices what it looks for."""

import asyncio
import random
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from app.federation.membership import Membership
from tests.fuzz.__main__ import run
from tests.fuzz.cases import KINDS
from tests.fuzz.gateway import Broken, fuzzed
from tests.fuzz.requests import conversation
from tests.support.virtual_time import JumpingLoop

SEED = 7
CASES = 400

SHORT = settings(
    max_examples=12,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.function_scoped_fixture],
)


@pytest.mark.parametrize("kind", KINDS)
def test_a_seeded_run(kind: str, tmp_path: Path) -> None:
    """No 500, no traceback, no secret, nothing of another tenant, no hang: whatever callers, engines and files hold."""
    with asyncio.Runner(loop_factory=JumpingLoop) as runner:
        assert runner.run(run(kind, SEED, 0, CASES, tmp_path)) == 0


@pytest.mark.parametrize("kind", KINDS)
@SHORT
@given(chance=st.randoms(use_true_random=False))
def test_what_breaks_gets_small(kind: str, chance: Random, tmp_path: Path) -> None:
    """The same cases from Hypothesis, which makes one that breaks as small as it gets."""

    async def one() -> None:
        async with KINDS[kind](tmp_path) as case:
            await case(chance)

    with asyncio.Runner(loop_factory=JumpingLoop) as runner:
        runner.run(one())


def noticed(prepare: Any) -> str:
    """What is said to be broken when a gateway was prepared to be so."""

    async def story() -> None:
        async with fuzzed("red", "blue", "shared", "rogue") as gateway:
            await gateway.ask("retrieve", {"query": "q"})
            prepare(gateway)
            await gateway.ask("retrieve", {"query": "q"})

    with asyncio.Runner(loop_factory=JumpingLoop) as runner, pytest.raises(Broken) as broken:
        runner.run(story())
    return str(broken.value)


def answering(text: bytes) -> Any:
    """Let an engine that `red` sees answer with this text in a hit."""

    def prepare(gateway: Any) -> None:
        body = b'{"jsonrpc":"2.0","id":%d,"result":{"hits":[{"id":"x","score":1,"text":"%b"}]}}'

        def script(method: str, call_id: Any) -> list[bytes]:
            whole = body % (call_id, text)
            return [b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(whole), whole)]

        gateway.engines["red"].script = script

    return prepare


@pytest.mark.parametrize("text", [b"Traceback (most recent call last)", b"azure-1", b"S3CR3T-key"])
def test_what_must_not_be_in_an_answer_is_noticed(text: bytes) -> None:
    """A traceback, a hit of another tenant's engine, a secret of the registry."""
    assert "an answer holds" in noticed(answering(text))


def test_an_internal_error_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A gateway that falls over while it answers is -32603, and found out."""

    def prepare(gateway: Any) -> None:
        monkeypatch.setattr(Membership, "current", None)

    assert "-32603" in noticed(prepare)


def test_a_hang_is_noticed() -> None:
    """A request that is never answered is found out, at once."""

    async def never(*_: Any) -> None:
        await asyncio.Event().wait()

    def prepare(gateway: Any) -> None:
        gateway._config.loaded_app = never

    assert "not answered within" in noticed(prepare)


def test_a_case_is_its_number() -> None:
    """The same seed and number make the same case."""
    assert conversation(random.Random("7:requests:3")) == conversation(random.Random("7:requests:3"))
    assert conversation(random.Random("7:requests:3")) != conversation(random.Random("7:requests:4"))
