"""The OAuth metadata of the MCP endpoint (RFC 9728), from which a client learns which issuer gives it a token."""

from collections.abc import Mapping
from typing import Any

from app.api.rpc_path import MCP_METADATA, MCP_PATH
from app.protocol import envelope
from app.settings.schema import GatewaySettings

Scope = Mapping[str, Any]


class ProtectedResource:
    """The MCP endpoint as an OAuth protected resource."""

    __slots__ = ("_issuer", "_name", "_public_url", "_scopes")

    def __init__(self, settings: GatewaySettings) -> None:
        self._issuer = settings.jwt.issuer if "jwt" in settings.auth.mode else None
        self._name = settings.server.name
        self._public_url = settings.server.public_url
        # A client requests values of the roles claim from the issuer; without that claim a scope has no meaning here.
        reading = [word for word, role in settings.jwt.roles.items() if role == "read"]
        self._scopes = sorted(reading) if settings.jwt.roles_claim is not None else []

    @property
    def advertised(self) -> bool:
        """Whether tokens are accepted, so that there is metadata to publish."""
        return self._issuer is not None

    def metadata(self, scope: Scope) -> bytes:
        """The document of RFC 9728 §2, as JSON."""
        document: dict[str, Any] = {
            "resource": self._url(scope),
            "authorization_servers": [self._issuer],
            "bearer_methods_supported": ["header"],
            "resource_name": self._name,
        }
        if self._scopes:
            document["scopes_supported"] = self._scopes
        return envelope.dumps(document)

    def challenge(self, scope: Scope, written: bytes) -> bytes:
        """The `WWW-Authenticate` value `written` plus the address of the metadata (RFC 9728 §5.1) and the scope."""
        if not self.advertised:
            return written
        address = self._url(scope).removesuffix(MCP_PATH) + MCP_METADATA
        needed = f', scope="{" ".join(self._scopes)}"' if self._scopes else ""
        return written + f', resource_metadata="{address}"{needed}'.encode("latin-1", "replace")

    def _url(self, scope: Scope) -> str:
        if self._public_url is not None:
            return self._public_url + MCP_PATH
        scheme, host = scope.get("scheme", "http"), "localhost"
        for name, value in scope["headers"]:
            if name == b"host":
                host = value.decode("latin-1")
            elif name == b"x-forwarded-proto" and value.rpartition(b",")[2].strip().lower() == b"https":
                # From any peer: the client compares the address with the one it used, so a forged header misleads
                # only its sender.
                scheme = "https"
        return f"{scheme}://{host}{MCP_PATH}"

    def __repr__(self) -> str:
        return f"<ProtectedResource {self._public_url or MCP_PATH} of {self._issuer or 'no issuer'}>"
