"""What a client without a token is told, so that it can get one: the protected resource of RFC 9728.

Decides under which URL this door goes, and what is said of it. It refuses to know how tokens are checked, and
advertises nothing where none are accepted.
"""

from collections.abc import Mapping
from typing import Any

from app.api.rpc_path import MCP_METADATA, MCP_PATH
from app.protocol import envelope
from app.settings.schema import GatewaySettings

Scope = Mapping[str, Any]

PATH = MCP_PATH
METADATA = MCP_METADATA


class ProtectedResource:
    """The door as OAuth knows it."""

    __slots__ = ("_issuer", "_name", "_public_url", "_scopes")

    def __init__(self, settings: GatewaySettings) -> None:
        self._issuer = settings.jwt.issuer if "jwt" in settings.auth.mode else None
        self._name = settings.server.name
        self._public_url = settings.server.public_url
        # Words of the roles claim are what a client asks the issuer for; without that claim a scope means nothing here.
        reading = [word for word, role in settings.jwt.roles.items() if role == "read"]
        self._scopes = sorted(reading) if settings.jwt.roles_claim is not None else []

    @property
    def advertised(self) -> bool:
        """Whether tokens are accepted at all."""
        return self._issuer is not None

    def metadata(self, scope: Scope) -> bytes:
        """The document of RFC 9728 §2, as JSON."""
        said: dict[str, Any] = {
            "resource": self._url(scope),
            "authorization_servers": [self._issuer],
            "bearer_methods_supported": ["header"],
            "resource_name": self._name,
        }
        if self._scopes:
            said["scopes_supported"] = self._scopes
        return envelope.dumps(said)

    def challenge(self, scope: Scope, written: bytes) -> bytes:
        """A `WWW-Authenticate` that also says where the metadata is (RFC 9728 §5.1), and which scope is needed."""
        if not self.advertised:
            return written
        address = self._url(scope).removesuffix(PATH) + METADATA
        needed = f', scope="{" ".join(self._scopes)}"' if self._scopes else ""
        return written + f', resource_metadata="{address}"{needed}'.encode("latin-1", "replace")

    def _url(self, scope: Scope) -> str:
        if self._public_url is not None:
            return self._public_url + PATH
        host = next((value for name, value in scope["headers"] if name == b"host"), b"localhost")
        return f"{scope.get('scheme', 'http')}://{host.decode('latin-1')}{PATH}"

    def __repr__(self) -> str:
        return f"<ProtectedResource {self._public_url or PATH} of {self._issuer or 'nobody'}>"
