"""Credentials as they really come: in every accepted form, in every odd one, and never anywhere but in the header."""

import asyncio
import json
from typing import Any

import pytest

from app.federation.membership import Membership
from tests.support.listening_gateway import listening
from tests.support.log_lines import own_log
from tests.support.running_gateway import Json, entry, running, until
from tests.support.scripted_engine import Bytes, Http, RpcFault, hang
from tests.support.tenancy import asked, bearer, tenant

KEY = "a-good-key.0123_456~789+/=="
TENANTS: Json = {"red": tenant("*", keys=(KEY,))}
INFO: Json = {"jsonrpc": "2.0", "id": "seven", "method": "info", "params": {}}


@pytest.mark.parametrize(
    "headers",
    [
        {"authorization": f"Bearer {KEY}"},
        {"authorization": f"bearer {KEY}"},
        {"authorization": f"BEARER   {KEY}  "},
        {"authorization": f" Bearer\t{KEY}"},
        {"x-api-key": KEY},
        {"X-API-Key": f"  {KEY} "},
    ],
)
async def test_accepted_forms(headers: Json) -> None:
    """`Authorization: Bearer` in any case and spacing, and `X-API-Key`."""
    async with running([], reach=False, tenants=TENANTS) as gateway:
        answer = await gateway.post(INFO, headers=headers)
    assert answer.status_code == 200
    assert "result" in answer.json()


@pytest.mark.parametrize(
    "headers",
    [
        [],
        [(b"authorization", b"")],
        [(b"authorization", b"Bearer")],
        [(b"authorization", b"Bearer ")],
        [(b"authorization", b"Bearer one two")],
        [(b"authorization", KEY.encode())],
        [(b"authorization", b"Basic " + KEY.encode())],
        [(b"authorization", b"BearerX " + KEY.encode())],
        [(b"authorization", "Bearer schlüssel".encode())],
        [(b"authorization", b"Bearer \xff\xfe\x80")],
        [(b"authorization", b"Bearer " + b"x" * 100_000)],
        [(b"authorization", b"Bearer " + KEY.encode()), (b"authorization", b"Bearer " + KEY.encode())],
        [(b"authorization", b"Bearer " + KEY.encode()), (b"x-api-key", KEY.encode())],
        [(b"x-api-key", b"")],
        [(b"x-api-key", b"Bearer " + KEY.encode())],
        [(b"x-api-key", KEY.encode() + b"," + KEY.encode())],
        [(b"x-api-key", KEY.encode()[:-1])],
        [(b"authorization", b"Bearer a.b.c")],
        [(b"cookie", b"key=" + KEY.encode())],
    ],
)
async def test_anything_else_is_401(headers: list[tuple[bytes, bytes]]) -> None:
    """Whatever is no credential is answered 401 with WWW-Authenticate, -32012 and the id; nothing of it is logged."""
    with own_log() as log:
        async with running([], reach=False, tenants=TENANTS) as gateway:
            answer = await gateway.client.post("/rcp", content=json.dumps(INFO), headers=headers)
    assert answer.status_code == 401
    assert answer.headers["www-authenticate"].startswith('Bearer realm="rcp"')
    assert answer.headers["x-request-id"]
    body = answer.json()
    assert (body["id"], body["error"]["code"]) == ("seven", -32012)
    (line,) = [line for line in log.lines if line["event"] == "refused"]
    assert (line["status"], line["code"]) == (401, -32012)
    for sent in (b"xxx", KEY.encode(), "schlüssel".encode()):
        assert sent not in log.text.encode()
        assert sent not in answer.content


@pytest.mark.parametrize("path", ["/rcp?key=KEY", "/rcp?authorization=Bearer%20KEY"])
async def test_a_key_in_the_url_or_the_body_opens_nothing(path: str) -> None:
    """Credentials are read from headers only."""
    body = {**INFO, "params": {"authorization": f"Bearer {KEY}", "key": KEY}}
    async with running([], reach=False, tenants=TENANTS) as gateway:
        answer = await gateway.post(body, path.replace("KEY", KEY))
    assert answer.status_code == 401


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (b"", None),
        (b"nonsense", None),
        (b"[]", None),
        (b'{"id": 5}', 5),
        (b'{"id": null}', None),
        (b" " * 70_000, None),
    ],
)
async def test_the_id_is_echoed_where_it_can_be_read(body: bytes, expected: Any) -> None:
    """Whoever is turned away hears its id if the body has one, and is turned away whatever the body is."""
    async with running([], reach=False, tenants=TENANTS) as gateway:
        answer = await gateway.post(body)
    assert answer.status_code == 401
    assert answer.json()["id"] == expected


async def test_too_large_a_body_of_a_stranger_is_not_read_to_its_end() -> None:
    """A stranger's body is bounded like any other."""
    async with running([], {"server": {"max_body_bytes": 2048}}, reach=False, tenants=TENANTS) as gateway:
        declared = await gateway.post(b"x" * 4096)
        answer = await gateway.client.post("/rcp", content=_pieces(100), headers={"transfer-encoding": "chunked"})
    assert declared.status_code == 413
    assert answer.status_code == 401


async def _pieces(count: int) -> Any:
    for _ in range(count):
        yield b"x" * 1024


async def test_raw_bytes_on_a_socket() -> None:
    """Behind the real server: non-ASCII, doubled and very long headers are refused, and the next request is served."""
    body = json.dumps(INFO).encode()
    head = b"POST /rcp HTTP/1.1\r\nhost: g\r\nconnection: close\r\ncontent-length: %d\r\n" % len(body)
    good = b"authorization: Bearer " + KEY.encode() + b"\r\n"
    async with listening([], tenants=TENANTS) as (_, port):
        for odd, statuses in (
            (b"authorization: Bearer \xff\xfe\r\n", {401}),
            (good + good, {401}),
            (b"authorization: Bearer " + b"x" * 20_000 + b"\r\n", {401}),
            (b"authorization: Bearer " + b"x" * 100_000 + b"\r\n", {400, 401}),
            (good, {200}),
        ):
            answer = await _exchanged(port, head + odd + b"\r\n" + body)
            assert int(answer.split(b" ", 2)[1]) in statuses, odd[:60]


async def _exchanged(port: int, sent: bytes) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(sent)
    async with asyncio.timeout(20):
        answer = await reader.read()
    writer.close()
    return answer


async def test_an_expired_key() -> None:
    """From its moment on a key is as wrong as any other."""
    tenants = {"red": tenant("*", keys=(KEY,))}
    tenants["red"]["keys"][0]["expires"] = "2027-01-31"
    async with running([], reach=False, tenants=tenants) as gateway:
        authenticator = gateway.state.authenticator
        assert authenticator is not None
        moment = 1_801_353_600.0  # 2027-01-31T00:00:00Z
        statuses = []
        for now in (moment - 1, moment):
            authenticator._clock = lambda now=now: now  # type: ignore[misc]
            statuses.append((await asked(gateway, KEY, "info")).status_code)
    assert statuses == [200, 401]


async def test_no_engine_hears_of_a_callers_credential(engines: Any) -> None:
    """What a caller presents goes no further than here."""
    engine = await engines()
    headers = {**bearer(KEY), "cookie": "c=1", "x-forwarded-for": "9.9.9.9", "proxy-authorization": "Basic x"}
    async with running([entry("e", engine)], tenants=TENANTS) as gateway:
        message = {"jsonrpc": "2.0", "id": 1, "method": "retrieve", "params": {"query": "q"}}
        assert "result" in (await gateway.post(message, headers=headers)).json()
    sent = engine.requests()[0].headers
    assert not {"authorization", "x-api-key", "cookie", "x-forwarded-for", "proxy-authorization"} & sent.keys()


async def test_secrets_are_nowhere(engines: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Secrets in URLs, headers and keys, through every way to end, at debug level: in no answer, log or view."""
    secret = "S3CR3T"
    engine = await engines()
    url = f"{engine.url}?key={secret}"
    entries = [
        entry("ok", url, headers={"Authorization": f"Bearer {secret}", "X-API-Key": secret}),
        entry("httpx", url, client="httpx", headers={"Authorization": secret}),
        entry("nowhere", f"http://does-not-exist.invalid/rcp?key={secret}", timeoutMs=500),
        entry("plain", f"https://127.0.0.1:{engine.port}/rcp?key={secret}", timeoutMs=500),
    ]
    key = f"key-{secret}-0123456789"
    tenants = {"red": tenant("*", keys=(key,), roles=["read", "admin"])}
    answers: list[str] = []
    with own_log() as log:
        log.configure(level="debug")
        async with running(
            entries, {"log": {"level": "debug", "bodies": True}}, reach=False, tenants=tenants
        ) as gateway:
            known = [engine for engine in gateway.state.engines.engines if engine.id in ("ok", "httpx")]
            await until(lambda: all(engine.up for engine in known))
            for script in (
                {"hits": []},
                Http(500, f"see {secret}".encode()),
                RpcFault(-32602, f"bad header Bearer {secret}"),
                Bytes(f"{secret} is no HTTP\r\n\r\n".encode()),
                {"hits": None},
                hang,
            ):
                engine.answers["retrieve"] = script
                answers.append((await asked(gateway, key, "retrieve", {"query": "q"})).text)
            answers.append((await asked(gateway, f"wrong-{secret}-0123", "retrieve", {"query": "q"})).text)
            with monkeypatch.context() as broken:
                broken.setattr(Membership, "current", None)
                answers.append((await asked(gateway, key, "retrieve", {"query": "q"})).text)
            for path in ("/engines", "/metrics", "/readyz", "/nothing"):
                answers.append((await gateway.client.get(path, headers=bearer(key))).text)
            answers.append(repr(gateway.state))
    assert "internal_error" in log.text
    assert "Traceback" in log.text
    assert secret not in log.text
    for answer in answers:
        assert secret not in answer
        assert "Traceback" not in answer
