"""An issuer of JSON Web Tokens: keys it signs with, and the server where it publishes them."""

import asyncio
import json
import ssl
import warnings
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from time import time
from typing import Any

from joserfc import jwt
from joserfc.jwk import ECKey, Key, OctKey, RSAKey
from joserfc.jws import JWSRegistry

Json = dict[str, Any]

ISSUER = "https://login.test"
AUDIENCE = "rcp-gateway"


def rsa(kid: str, bits: int = 2048) -> RSAKey:
    """An RSA key."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a key that is too short is meant to be
        return RSAKey.generate_key(bits, {"kid": kid, "use": "sig"}, private=True)


def ec(kid: str) -> ECKey:
    """A key on the curve P-256: quick to make and to verify."""
    return ECKey.generate_key("P-256", {"kid": kid, "use": "sig"}, private=True)


def secret(kid: str) -> OctKey:
    """A symmetric key."""
    return OctKey.import_key("a shared secret of some length, 32+", {"kid": kid})


def published(*keys: Key) -> bytes:
    """The JWKS of these keys."""
    return json.dumps({"keys": [{**key.as_dict(private=False), "kid": key.kid} for key in keys]}).encode()


def claims(**more: Any) -> Json:
    """The claims of a token that is good for the tenant red; None leaves a claim out."""
    made = {"iss": ISSUER, "aud": AUDIENCE, "exp": int(time()) + 600, "tenant": "red", **more}
    return {name: value for name, value in made.items() if value is not None}


def token(key: Key, alg: str = "ES256", header: Json | None = None, **more: Any) -> str:
    """A token signed with this key; `more` are claims."""
    head = {"alg": alg, "kid": key.kid, **(header or {})}
    lenient = JWSRegistry(algorithms=[alg], strict_check_header=False)
    return jwt.encode(
        {name: value for name, value in head.items() if value is not None}, claims(**more), key, registry=lenient
    )


class Issuer:
    """Publishes `body` at `url`, and counts who comes to look. `silent`: it accepts and never answers."""

    def __init__(self, *keys: Key) -> None:
        self.body = published(*keys)
        self.status = 200
        self.headers = ""
        self.silent = False
        self.looks = 0
        self.url = ""

    @property
    def settings(self) -> Json:
        """The section `jwt` of a gateway that believes it."""
        return {"issuer": ISSUER, "audience": AUDIENCE, "jwks_url": self.url}

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer one request."""
        try:
            await reader.readuntil(b"\r\n\r\n")
            self.looks += 1
            if self.silent:
                await reader.read()
                return
            head = f"HTTP/1.1 {self.status} X\r\ncontent-length: {len(self.body)}\r\nconnection: close\r\n"
            writer.write(f"{head}{self.headers}\r\n".encode() + self.body)
            await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()


@asynccontextmanager
async def issuing(*keys: Key, tls: ssl.SSLContext | None = None) -> AsyncIterator[Issuer]:
    """An issuer with these keys, on a port of loopback; with `tls` at https://localhost."""
    issuer = Issuer(*keys)
    server = await asyncio.start_server(issuer.serve, "127.0.0.1", 0, ssl=tls)
    origin = "http://127.0.0.1" if tls is None else "https://localhost"
    issuer.url = f"{origin}:{server.sockets[0].getsockname()[1]}/jwks.json?client=abc"
    try:
        yield issuer
    finally:
        server.close()
