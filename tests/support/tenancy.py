"""Tenants of tests, their keys, and what they are answered."""

from hashlib import sha256
from typing import Any

import httpx2

from tests.support.running_gateway import Json, RunningGateway


def digest(key: str) -> str:
    """The digest of a key, as the tenants file holds it."""
    return sha256(key.encode()).hexdigest()


def tenant(*engines: str, keys: tuple[str, ...] = (), **more: Any) -> Json:
    """The entry of a tenant that sees these engines; its keys are named k0, k1 and so on."""
    listed = [{"id": f"k{index}", "sha256": digest(key)} for index, key in enumerate(keys)]
    return {"engines": list(engines), "keys": listed, **more}


def bearer(key: str) -> dict[str, str]:
    """The header of a caller with this key."""
    return {"authorization": f"Bearer {key}"}


async def asked(
    gateway: RunningGateway, key: str | None, method: str, params: Json | None = None, **headers: str
) -> httpx2.Response:
    """The HTTP answer to one request with this key; `headers` with underscores for dashes."""
    message = {"jsonrpc": "2.0", "id": 7, "method": method, "params": params or {}}
    sent = {name.replace("_", "-"): value for name, value in headers.items()}
    return await gateway.post(message, headers={**({} if key is None else bearer(key)), **sent})


async def result(gateway: RunningGateway, key: str | None, method: str, params: Json | None = None) -> Json:
    """The result of one request that must succeed."""
    response = await asked(gateway, key, method, params)
    assert response.status_code == 200, response.text
    body: Json = response.json()
    assert "result" in body, body
    found: Json = body["result"]
    return found


async def error(gateway: RunningGateway, key: str | None, method: str, params: Json | None = None) -> Json:
    """The error of one request that must fail."""
    body: Json = (await asked(gateway, key, method, params)).json()
    assert "error" in body, body
    found: Json = body["error"]
    return found
