"""The protected resource: its URL, its metadata, and the challenge that leads there."""

import json
from typing import Any

from app.api.auth.protected_resource import ProtectedResource
from app.settings.schema import GatewaySettings

SCOPE: dict[str, Any] = {"scheme": "http", "headers": [(b"host", b"localhost:8080")]}


def resource(public_url: str | None = None, **jwt: Any) -> ProtectedResource:
    """Of a gateway that believes tokens."""
    tokens = {"issuer": "https://login.test", "audience": "a", "jwks_url": "https://login.test/keys", **jwt}
    auth = {"mode": ["jwt"], "tenants_file": "t"}
    settings = {"auth": auth, "jwt": tokens, "server": {"public_url": public_url}}
    return ProtectedResource(GatewaySettings.model_validate(settings))


def test_nothing_is_advertised_without_tokens() -> None:
    """A gateway of keys, or of nobody, leaves the challenge as it is."""
    plain = ProtectedResource(GatewaySettings())
    assert plain.advertised is False
    assert plain.challenge(SCOPE, b"Bearer") == b"Bearer"
    assert repr(plain) == "<ProtectedResource /mcp of no issuer>"


def test_the_url_is_the_clients_or_the_public_one() -> None:
    """As the Host header says, or as the operator does."""
    assert json.loads(resource().metadata(SCOPE))["resource"] == "http://localhost:8080/mcp"
    public = resource("https://gateway.test")
    assert json.loads(public.metadata(SCOPE))["resource"] == "https://gateway.test/mcp"
    assert public.challenge(SCOPE, b'Bearer realm="rcp"') == (
        b'Bearer realm="rcp", resource_metadata="https://gateway.test/.well-known/oauth-protected-resource/mcp"'
    )
    assert repr(public) == "<ProtectedResource https://gateway.test of https://login.test>"


def test_the_url_is_https_behind_a_tls_proxy() -> None:
    """A proxy that ends TLS says so; anything else in the header is ignored."""
    for sent, scheme in ((b"https", "https"), (b"http, HTTPS", "https"), (b"https, http", "http"), (b"x", "http")):
        scope = {**SCOPE, "headers": [*SCOPE["headers"], (b"x-forwarded-proto", sent)]}
        assert json.loads(resource().metadata(scope))["resource"] == f"{scheme}://localhost:8080/mcp"


def test_scopes_are_words_of_the_roles_claim() -> None:
    """Named are those that let somebody read; without such a claim there is no scope to ask for."""
    roles = {"rag.read": "read", "rag.write": "write", "all": "read"}
    assert json.loads(resource(roles_claim="scope", roles=roles).metadata(SCOPE))["scopes_supported"] == [
        "all",
        "rag.read",
    ]
    assert "scopes_supported" not in json.loads(resource(roles=roles).metadata(SCOPE))
