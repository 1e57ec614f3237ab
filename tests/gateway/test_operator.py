"""The operator's endpoints: who is let in, what is seen, and what can be done to an engine."""

import asyncio
import json
import sys
from typing import Any

import pytest

from app.api.admin_views import settings_view
from app.api.reload import Reload
from app.settings.file_watch import Watch
from tests.gateway.conftest import Starter
from tests.gateway.test_explain import LOOPBACK, Usual, admin
from tests.support.listening_gateway import listening
from tests.support.log_lines import own_log
from tests.support.ports import free_port
from tests.support.running_gateway import START_SECONDS, Json, RunningGateway, entry, running
from tests.support.scripted_engine import RpcFault


async def act(gateway: RunningGateway, engine: str, action: str, **more: Any) -> tuple[int, Json]:
    """The status and the body that an action is answered with."""
    response = await gateway.post({"engine": engine, "action": action, **more}, "/admin/actions", LOOPBACK)
    return response.status_code, response.json()


def asked(result: Json) -> dict[str, str]:
    """Engine -> why it was not asked, or its status."""
    return {one["id"]: one.get("reason", one["status"]) for one in result["_meta"]["x-gateway"]["engines"]}


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 200),
        ({"host": "localhost"}, 200),
        ({"host": "[::1]:8080"}, 200),
        ({"host": "gateway.example"}, 403),
        ({"host": ""}, 403),
        ({"x-forwarded-for": "127.0.0.1"}, 403),
        ({"forwarded": "for=127.0.0.1"}, 403),
        ({"via": "1.1 proxy"}, 403),
        ({"x-forwarded-host": "gateway.example"}, 403),
        ({"x-forwarded-proto": "https"}, 403),
        ({"x-forwarded-prefix": "/"}, 403),
        ({"x-real-ip": "127.0.0.1"}, 403),
        ({"sec-fetch-site": "cross-site"}, 403),
        ({"sec-fetch-site": "same-site"}, 403),
        ({"sec-fetch-site": "same-origin"}, 200),
        ({"sec-fetch-site": "none"}, 200),
    ],
)
async def test_without_credentials_only_this_machine_is_let_in(headers: dict[str, str], status: int) -> None:
    """Another host's name, a proxy, or another site's page is turned away with what to do about it."""
    async with running([]) as gateway:
        for path in ("/admin/session", "/admin/engines", "/admin/overlap", "/admin/settings"):
            response = await gateway.client.get(path, headers={**LOOPBACK, **headers})
            assert response.status_code == status
            assert response.headers["cache-control"] == "no-store"
            if status != 200:
                assert response.json()["error"]["code"] == -32012


@pytest.mark.parametrize(("version", "status"), [("1.1", 200), ("1.0", 403)])
async def test_a_proxy_that_says_nothing_of_itself_is_known_by_its_version(version: str, status: int) -> None:
    """nginx as it comes asks with HTTP/1.0, and names as the host the address that it was given."""
    async with listening([]) as (_, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(f"GET /admin/engines HTTP/{version}\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n".encode())
        head = await reader.read()
        writer.close()
        await writer.wait_closed()
    assert int(head.split()[1]) == status


@pytest.mark.parametrize(
    ("content", "kind", "status"),
    [
        (b"{}", "text/plain", 415),
        (b"{}", "application/x-www-form-urlencoded", 415),
        (b"{", "application/json", 400),
        (b"[]", "application/json", 400),
        (b'{"x": "' + b"y" * 2000 + b'"}', "application/json", 413),
        (b'{"action": "explode"}', "application/json; charset=utf-8", 400),
        (b'{"action": "off"}', "application/json", 400),
        (b'{"action": "off", "engine": "nobody"}', "application/json", 404),
    ],
)
async def test_what_is_sent_must_be_json_that_makes_sense(content: bytes, kind: str, status: int) -> None:
    """A form of another site cannot declare JSON; the rest is refused with an error that says why."""
    async with running([], {"server": {"max_body_bytes": 1024}}) as gateway:
        response = await gateway.post(content, "/admin/actions", {**LOOPBACK, "content-type": kind})
    assert response.status_code == status
    assert response.json()["error"]["message"]


async def test_engines_with_their_last_minutes() -> None:
    """Each engine is told with its state, its calls, its last error and what it advertises, and no address."""
    stage = Usual()
    stage.engines["wiki"].answers["retrieve"] = RpcFault(-32603, "broken")
    async with stage as gateway:
        for _ in range(3):
            await gateway.retrieve()
        body = await admin(gateway, "/admin/engines")
    told = {one["id"]: one for one in body["engines"]}
    assert told["docs"]["window"]["calls"] == 3
    assert told["docs"]["window"]["failed"] == 0
    assert told["docs"]["window"]["p50Ms"] > 0
    assert sum(slot["calls"] for slot in told["docs"]["window"]["slots"]) == 3
    assert told["wiki"]["window"]["failed"] == 3
    assert "broken" in told["wiki"]["lastFault"]["detail"]
    assert told["docs"]["lastFault"] is None
    assert told["docs"]["advertisement"]["filter"]["fields"] == {"lang": "keyword", "year": "int", "reviewed": "bool"}
    assert body["merged"]["retrieve"]["maxK"]
    assert "http://" not in json.dumps(body)


async def test_what_a_child_wrote_to_stderr_is_kept_for_operators() -> None:
    """The end of a stdio engine's stderr is told (B81), also after it has ended; other engines have none."""
    command = [sys.executable, "-c", "import sys; sys.stderr.write('x' * 20_000 + 'no index at \\x1b[1m/srv')"]
    entries = [{"id": "child", "command": command}, entry("far", "http://127.0.0.1:1/rcp")]
    async with running(entries, reach=False) as gateway:
        written = ""
        async with asyncio.timeout(START_SECONDS):
            while not written.endswith("no index at \x1b[1m/srv"):
                await asyncio.sleep(0.02)
                told = {one["id"]: one for one in (await admin(gateway, "/admin/engines"))["engines"]}
                written = told["child"]["stderr"] or ""
    assert len(written) == 8192
    assert told["far"]["stderr"] is None


async def test_overlap_counts_what_was_answered() -> None:
    """Pairs share the hits that both gave; each engine's share of the list is told."""
    async with Usual() as gateway:
        assert (await admin(gateway, "/admin/overlap"))["hits"] == 0
        result = await gateway.retrieve(k=20)
        told = await admin(gateway, "/admin/overlap")
    pairs = {(first, second): shared for first, second, shared in told["pairs"]}
    assert pairs == {("code", "docs"): 2, ("code", "wiki"): 2, ("docs", "wiki"): 1}
    assert told["hits"] == len(result["hits"])
    assert sum(one["share"] for one in told["engines"]) == pytest.approx(1, abs=0.01)
    assert {one["id"]: (one["given"], one["alone"]) for one in told["engines"]} == {
        "code": (5, 2), "docs": (5, 3), "wiki": (4, 2)
    }  # fmt: skip


async def test_an_engine_can_be_switched_off_and_on() -> None:
    """Off, it is not asked and its own endpoint says so; on, it is asked again; neither is done twice."""
    async with Usual() as gateway:
        assert await act(gateway, "wiki", "off") == (200, {"said": "switched off"})
        assert await act(gateway, "wiki", "off") == (200, {"said": "it was off already"})
        assert asked(await gateway.retrieve()) == {"code": "ok", "docs": "ok", "wiki": "disabled"}
        error = await gateway.error("retrieve", {"query": "q"}, base="/engines/wiki/rcp")
        assert (error["code"], "switched off" in error["message"]) == (-32010, True)
        told = {one["id"]: one["state"] for one in (await admin(gateway, "/admin/engines"))["engines"]}
        assert told == {"code": "up", "docs": "up", "wiki": "off"}
        assert await act(gateway, "wiki", "on") == (200, {"said": "switched on"})
        assert asked(await gateway.retrieve())["wiki"] == "ok"


async def test_a_breaker_can_be_reset(engines: Starter) -> None:
    """An engine that is left alone is asked again at once."""
    settings = {"engines": {"breaker_failures": 2, "breaker_open_ms": 60_000}}
    good, sick = await engines(), await engines()
    sick.answers["retrieve"] = RpcFault(-32010, "away")
    async with running([entry("good", good), entry("sick", sick, retries=0)], settings) as gateway:
        for _ in range(3):
            result = await gateway.retrieve()
        assert asked(result)["sick"] == "breaker_open"
        told = {one["id"]: one for one in (await admin(gateway, "/admin/engines"))["engines"]}
        assert told["sick"]["breaker"] == "open"
        assert 0 < told["sick"]["retryInMs"] <= 60_000
        sick.answers["retrieve"] = {"hits": []}
        assert (await act(gateway, "sick", "reset"))[0] == 200
        assert asked(await gateway.retrieve())["sick"] == "ok"


async def test_a_handshake_can_be_asked_for(engines: Starter) -> None:
    """What the engine says now is known at once; one that cannot be reached is an error that says so."""
    engine = await engines(free_port(), name="Docs")
    async with running([entry("docs", engine)]) as gateway:
        engine.capabilities = {"retrieve": {"maxK": 7}}
        status, body = await act(gateway, "docs", "handshake")
        assert (status, body["said"].startswith("it is Docs")) == (200, True)
        assert (await gateway.result("info"))["capabilities"]["retrieve"]["maxK"] == 7
        await engine.stop()
        status, body = await act(gateway, "docs", "handshake")
        assert (status, body["error"]["code"]) == (400, -32010)


async def test_drills_only_if_they_are_wished_for() -> None:
    """Without `admin.drills` a drill is refused with what to set; with it, answers fail until it is ended (B125)."""
    async with Usual() as gateway:
        status, body = await act(gateway, "wiki", "drill", kind="error")
        assert (status, "admin.drills" in body["error"]["message"]) == (403, True)
    async with Usual({"admin": {"drills": True}}) as gateway:
        assert (await act(gateway, "wiki", "drill", kind="error", seconds=60))[0] == 200
        told = {one["id"]: one["drill"] for one in (await admin(gateway, "/admin/engines"))["engines"]}
        assert told["docs"] is None
        assert told["wiki"]["kind"] == "error"
        result = await gateway.retrieve()
        assert asked(result)["wiki"] == "connect"
        assert "on purpose" in str(result["usage"]["notes"])
        assert await act(gateway, "wiki", "end_drill") == (200, {"said": "the drill is over"})
        assert asked(await gateway.retrieve())["wiki"] == "ok"
        assert await act(gateway, "wiki", "end_drill") == (200, {"said": "no drill was on"})


@pytest.mark.parametrize(
    ("wish", "field"),
    [
        ({"kind": "fire"}, "kind"),
        ({"kind": "hang", "seconds": 601}, "seconds"),
        ({"kind": "delay", "delayMs": 0}, "delayMs"),
    ],
)
async def test_a_fault_injection_must_make_sense(wish: Json, field: str) -> None:
    """A wish out of bounds is refused with its field."""
    async with Usual({"admin": {"drills": True}}) as gateway:
        status, body = await act(gateway, "wiki", "drill", **wish)
    assert (status, body["error"]["data"]["field"]) == (400, field)


async def test_every_action_is_on_record() -> None:
    """Done or refused, an action leaves one line that says who did what to whom."""
    with own_log() as log:
        async with Usual() as gateway:
            await act(gateway, "wiki", "off")
            await act(gateway, "wiki", "drill", kind="hang")
        lines = [line for line in log.lines if line["event"].startswith("admin_")]
    assert [(line["event"], line["action"], line["engine"], line["address"]) for line in lines] == [
        ("admin_action", "off", "wiki", "127.0.0.1"),
        ("admin_refused", "drill", "wiki", "127.0.0.1"),
    ]
    assert lines[0]["said"] == "switched off"


async def test_settings_with_their_source() -> None:
    """Every setting is told with its value and where it is from."""
    async with running([], {"fusion": {"rrf_k": 10}}) as gateway:
        told = await admin(gateway, "/admin/settings")
    settings = {one["key"]: one for one in told["settings"]}
    assert settings["fusion.rrf_k"] == {"key": "fusion.rrf_k", "value": 10, "default": 60, "source": "file"}
    assert settings["log.level"]["source"] == "default"


async def test_the_page_is_served_with_a_policy() -> None:
    """The console's files come with their types and a policy that allows nothing from elsewhere."""
    async with running([]) as gateway:
        for path, kind in (("/", "text/html"), ("/console.css", "text/css"), ("/console.js", "text/javascript")):
            response = await gateway.client.get(path)
            assert response.status_code == 200
            assert response.headers["content-type"] == f"{kind}; charset=utf-8"
            assert response.headers["content-security-policy"].startswith("default-src 'self';")
            assert response.headers["x-content-type-options"] == "nosniff"
        assert (await gateway.client.get("/favicon.ico")).status_code == 204
        page = (await gateway.client.get("/")).text
    assert "http" not in page.replace("http-equiv", "")
    assert "style=" not in page


async def test_faulty_files_are_told() -> None:
    """Whether the files are what is in force, and if not why; without a reload there is nothing to tell."""
    async with running([]) as gateway:
        state = gateway.state
        reload = Reload(state, lambda: pytest.fail("nothing is read"), Watch(()))
        assert settings_view(state, {}, None)["reload"] is None
        assert settings_view(state, {}, reload)["reload"] == {"failure": None}
        reload.failure = "gateway.yaml: server.port: must be a number"
        assert settings_view(state, {}, reload)["reload"] == {"failure": reload.failure}
