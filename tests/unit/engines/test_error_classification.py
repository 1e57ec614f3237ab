"""What a fault says: against the engine, for another attempt, and to whoever reads notes."""

import pytest

from app.engines.error_classification import (
    concerns_replica,
    counts_as_failure,
    is_suspect,
    marks_down,
    worth_repeating,
)
from app.engines.redaction import Secrets
from app.engines.transport import ConnectionLost
from app.protocol.errors import (
    BadStatus,
    BreakerOpen,
    ConnectFailed,
    LegError,
    LegFault,
    LegLate,
    LegRateLimited,
    LegTimeout,
    Overloaded,
    ProtocolViolation,
    Refused,
    ResponseTooLarge,
    TlsFailed,
)
from app.settings.schema import EngineEntry
from tests.support.fake_engine import entry_of


def unsent(fault: LegError) -> LegError:
    """The same fault before anything was sent."""
    fault.attempts = 0
    return fault


# fault, counts, marks down, worth another attempt
TABLE = [
    (LegTimeout("slow"), True, True, True),
    (unsent(LegTimeout("waited at the gate")), False, False, True),
    (ConnectFailed("refused"), True, True, True),
    (TlsFailed("expired"), True, True, False),
    (ConnectionLost("closed"), True, True, True),
    (ProtocolViolation("no JSON"), True, True, False),
    (ProtocolViolation("-32603 boom", code=-32603), True, False, True),
    (ProtocolViolation("-32700", code=-32700), True, False, False),
    (Refused("-32602 in HTTP 500", code=-32602, status=500), False, False, False),
    (Refused("-32013 in HTTP 413", code=-32013, status=413), False, False, False),
    (BadStatus("HTTP 422", status=422), False, False, False),
    (BadStatus("HTTP 500", status=500), True, True, True),
    (BadStatus("HTTP 501", status=501), True, True, False),
    (BadStatus("HTTP 503", status=503), True, True, True),
    (BadStatus("HTTP 400", status=400), False, False, False),
    (BadStatus("HTTP 404", status=404), False, True, False),
    (BadStatus("HTTP 401", status=401), False, True, False),
    (BadStatus("HTTP 302", status=302), False, True, False),
    (Refused("-32602", code=-32602), False, False, False),
    (Refused("-32005", code=-32005), False, False, False),
    (Refused("-32016", code=-32016), False, False, False),
    (Refused("-32010", code=-32010), True, False, True),
    (Refused("-32014", code=-32014), True, False, True),
    (Refused("-32000 in HTTP 500", code=-32000, status=500), True, False, False),
    (LegRateLimited("429", retry_after_ms=10), False, False, True),
    (LegRateLimited("429"), False, False, False),
    (ResponseTooLarge("17 MiB"), False, False, False),
    (Overloaded("full"), False, False, False),
    (BreakerOpen("open"), False, False, False),
    (LegLate("late"), False, False, False),
    (LegFault("ours"), False, False, False),
]


@pytest.mark.parametrize(("fault", "counted", "down", "again"), TABLE, ids=lambda value: str(value)[:40])
def test_table(fault: LegError, counted: bool, down: bool, again: bool) -> None:
    """What each fault says (B41, B46); an idempotent question is meant."""
    assert (counts_as_failure(fault), marks_down(fault), worth_repeating(fault, True, 0)) == (counted, down, again)


STRAYING = {"no JSON", "expired", "closed"} | {f"HTTP {status}" for status in (302, 401, 404, 500, 501, 503)}


@pytest.mark.parametrize(("fault", "_", "__", "again"), TABLE, ids=lambda value: str(value)[:40])
def test_who_strays_from_its_siblings(fault: LegError, _: bool, __: bool, again: bool) -> None:
    """What tells of one address only is asked of another replica; a request that is refused is refused by all."""
    assert concerns_replica(fault) == (fault.message in STRAYING)
    assert worth_repeating(fault, True, 0, elsewhere=True) == (again or concerns_replica(fault))
    assert not concerns_replica(fault) or worth_repeating(fault, True, 1, elsewhere=True)


@pytest.mark.parametrize("code", [-32001, -32003, -32004])
def test_a_replica_that_cannot_what_its_engine_advertises_strays(code: int) -> None:
    """It never heard of the method, or of the handshake that was just made: its siblings have."""
    fault = Refused("no", code=code)
    assert (counts_as_failure(fault), concerns_replica(fault), worth_repeating(fault, True, 0)) == (False, True, False)
    assert worth_repeating(fault, True, 0, elsewhere=True)
    assert not worth_repeating(fault, False, 0, elsewhere=True)


@pytest.mark.parametrize(("fault", "_", "__", "___"), TABLE, ids=lambda value: str(value)[:40])
def test_what_is_not_idempotent_is_asked_again_only_unsent(fault: LegError, _: bool, __: bool, ___: bool) -> None:
    """Unless no connection came about, a question that changes something is asked once."""
    assert worth_repeating(fault, False, 0) == isinstance(fault, ConnectFailed)


def test_what_may_follow_from_the_params_is_suspect() -> None:
    """-32603, -32700 and a bare HTTP 500: the engine is alive, and it may be the request."""
    suspect = {fault.message for fault, *_ in TABLE if is_suspect(fault)}
    assert suspect == {"-32603 boom", "-32700", "HTTP 500"}


def test_internal_error_is_asked_again_once() -> None:
    """RCP allows one repeat after -32603, however many are allowed otherwise."""
    fault = ProtocolViolation("-32603", code=-32603)
    assert [worth_repeating(fault, True, repeats) for repeats in (0, 1, 2)] == [True, False, False]


def test_secrets_are_masked() -> None:
    """Values of headers and of every URL's query never come back in a fault's words (B102)."""
    secrets = Secrets(
        entry_of(
            "docs",
            url="http://a.invalid/rcp?key=FIRST",
            replicas=["http://b.invalid/rcp?key=SECOND"],
            headers={"Authorization": "Bearer THIRD"},
        )
    )
    fault = secrets.mask_error(BadStatus("HTTP 500: no FIRST SECOND THIRD Bearer THIRD"))
    assert fault.message == "HTTP 500: no *** *** *** ***"
    assert str(fault) == fault.message
    assert repr(secrets) == "<Secrets: 5 words>"


@pytest.mark.parametrize(
    ("arguments", "said", "told"),
    [
        (("--token", "abcd"), "token abcd is expired", "token *** is expired"),
        (("--api-key=abcd", "--lang=english"), "key abcd, english", "key ***, english"),
        (("-p", "s3cr3t-arg-value"), "['-p', 's3cr3t-arg-value']", "['-p', '***']"),
        (("serve", "s3cr3tvalue"), "no s3cr3tvalue", "no ***"),
        (("db://me:pa55@h/x?key=k3yk3y",), "me:pa55 may not, nor k3yk3y; pa55", "*** may not, nor ***; ***"),
        (("serve", "/srv/index-2024/documents", "documents"), "serve documents", "serve documents"),
        (("--keywords", "none", "http://[x"), "none of http://[x", "none of http://[x"),
    ],
)
def test_arguments_that_look_like_secrets_are_masked(arguments: tuple[str, ...], said: str, told: str) -> None:
    """Of what a program is told, its own words keep what is no secret."""
    secrets = Secrets(EngineEntry(id="e", command=["engine", *arguments]))
    assert secrets.mask(said) == told


def test_a_query_is_masked_as_it_is_read() -> None:
    """An engine that quotes a value without its percent signs tells it all the same."""
    secrets = Secrets(entry_of("e", url="http://a.invalid/rcp?key=a%20b%2Fc&bare&empty="))
    assert secrets.mask("a%20b%2Fc, a b/c, bare, empty") == "***, ***, ***, empty"
