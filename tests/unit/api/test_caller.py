"""The value that an endpoint makes of whoever sends a message."""

from app.api.auth.keys import ApiKey
from app.api.auth.principal import AuthError, Principal
from app.api.caller import Caller
from app.federation.tenants import Tenant
from app.protocol.errors import Unauthorized
from app.state.quotas import Owner


def test_sessions_of_two_tenants_are_never_one() -> None:
    """Where callers are told apart, the session's name has its tenant before it."""
    assert Caller("r").cancel_scope is None
    assert Caller("r", "s").cancel_scope == "s"
    assert Caller("r", "s", tenant=Tenant("red")).cancel_scope == "red:s"
    assert Caller("r", tenant=Tenant("red")).cancel_scope is None


def test_a_principal_tells_no_secret() -> None:
    """In an incident one sees who and with which key, by name."""
    principal = Principal(Tenant("red"), ApiKey("red", "k", b"SECRET", 0.0), "k", Owner("red"))
    assert repr(principal) == "<Principal of red with k, 0 limited requests>"
    assert "SECRET" not in repr(principal.holder)
    assert repr(AuthError(401, Unauthorized("no"))) == "AuthError(401, Unauthorized(-32012, 'no', {}))"


def test_a_caller_without_session_is_known_by_itself() -> None:
    """By key and address, apart from every session; who has neither is nobody."""
    assert Caller("r").stream_scope is None
    assert Caller("r", address="1.2.3.4").stream_scope == "\n1.2.3.4"
    assert Caller("r", tenant=Tenant("red"), key_id="k").stream_scope == "\nred/k/"
    assert Caller("r", tenant=Tenant("red"), key_id="l").stream_scope != "\nred/k/"
