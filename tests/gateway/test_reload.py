"""Other files while it serves: taken over in one step or not at all, and nothing is left behind of what was before."""

import asyncio
import json
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any

import httpx2
import pytest

from app.api.reload import Reload
from app.main import build_app, build_state
from app.settings.sources import Files
from tests.support.gateway_process import gateway_process, write_files
from tests.support.log_lines import LogLines, own_log
from tests.support.running_gateway import Json, RunningGateway, entry, lifespan, until
from tests.support.scripted_engine import ScriptedEngine, hits

SWIFT = {"retrieve": {"deadline_ms": 4000}}
"""An engine that left is let go of once no request can be waiting for it any more."""


class Reloading:
    """A gateway that is kept to files in a folder, and reads them only when told to."""

    def __init__(self, folder: Path, gateway: RunningGateway, reload: Reload, log: LogLines) -> None:
        self.folder = folder
        self.gateway = gateway
        self.reload = reload
        self.log = log

    async def turn_to(self, entries: list[Json], settings: Json | None = None) -> None:
        """Write other files and have them read."""
        write_files(self.folder, entries, settings or SWIFT)
        await self.reload.now()

    async def reached(self) -> None:
        """Wait until every engine has been shaken hands with."""
        await until(lambda: all(engine.advertisement for engine in self.gateway.state.engines.engines))

    def told(self, event: str) -> list[Json]:
        """The log lines of one event."""
        return [line for line in self.log.lines if line["event"] == event]


@asynccontextmanager
async def reloading(folder: Path, entries: list[Json], settings: Json | None = None) -> AsyncIterator[Reloading]:
    """A started gateway that looks at its files only when told to."""
    write_files(folder, entries, settings or SWIFT)
    files = Files(folder / "rcp.json", folder / "gateway.yaml")
    with own_log() as log:
        state = build_state(*files.load())
        reload = Reload(state, files.load, files.watch())
        app: Any = build_app(state, reload)
        async with (
            lifespan(app),
            httpx2.AsyncClient(transport=httpx2.ASGITransport(app=app), base_url="http://gateway") as client,
        ):
            made = Reloading(folder, RunningGateway(state, client), reload, log)
            await made.reached()
            yield made


def engines_of(result: Json) -> list[str]:
    """Who was asked, by the report."""
    return [engine["id"] for engine in result["_meta"]["x-gateway"]["engines"]]


async def test_engines_join_and_leave(engines: Any, tmp_path: Path) -> None:
    """What the registry says now is asked by the next request; what stays keeps its connections and its handshake."""
    one, two, three = await engines(name="1"), await engines(name="2"), await engines(name="3")
    async with reloading(tmp_path, [entry("one", one), entry("two", two)]) as running:
        await running.gateway.retrieve()
        kept, connections = running.gateway.state.engines.engines[0], one.connections
        await running.turn_to([entry("one", one), entry("three", three)])
        await running.reached()
        assert engines_of(await running.gateway.retrieve()) == ["one", "three"]
        assert running.gateway.state.engines.engines[0] is kept
        assert one.connections == connections
        assert len(one.requests("initialize")) == 1
        (line,) = running.told("reloaded")
        assert (line["joined"], line["left"], line["settings"]) == (["three"], ["two"], [])


async def test_requests_under_way_finish_on_the_old_set(engines: Any, tmp_path: Path) -> None:
    """An engine that leaves still answers who asked it before, and is closed when nobody can be waiting any more."""
    engine, other = await engines(), await engines()
    free = asyncio.Event()

    async def held(asked: Any) -> Any:
        await free.wait()
        return {"hits": hits("old")}

    engine.answers["retrieve"] = held
    async with reloading(tmp_path, [entry("old", engine)]) as running:
        asked = asyncio.create_task(running.gateway.retrieve())
        await until(lambda: len(engine.requests()) == 1)
        await running.turn_to([entry("new", other)])
        await running.reached()
        assert engines_of(await running.gateway.retrieve()) == ["new"]
        free.set()
        result = await asked
        assert [hit["id"] for hit in result["hits"]] == ["old"]
        await until(lambda: not engine._writers)
        assert repr(running.gateway.state.engines).startswith("<EngineSet 1/1 up, version ")


async def test_settings_hold_from_the_next_request_on(engines: Any, tmp_path: Path) -> None:
    """Bounds and wishes of requests change without a restart."""
    async with reloading(tmp_path, [entry("e", await engines())]) as running:
        await running.turn_to(
            [entry("e", running.gateway.state.engines.engines[0].entry.url or "")],
            {"server": {"name": "other", "max_batch": 1, "max_body_bytes": 2000}, "retrieve": {"max_k": 3}},
        )
        info = await running.gateway.result("info")
        assert info["server"]["name"] == "other"
        assert info["capabilities"]["retrieve"]["maxK"] == 3
        ping = {"jsonrpc": "2.0", "id": 1, "method": "ping"}
        assert (await running.gateway.post([ping, ping])).json()["error"]["code"] == -32602
        assert (await running.gateway.post(b" " * 2001)).status_code == 413
        assert sorted(running.told("reloaded")[0]["settings"]) == [
            "retrieve.deadline_ms",
            "retrieve.max_k",
            "server.max_batch",
            "server.max_body_bytes",
            "server.name",
        ]


async def test_what_needs_a_restart_is_said(engines: Any, tmp_path: Path) -> None:
    """Settings that are read only at the start are named in the log when they change, and counted."""
    engine = await engines()
    async with reloading(tmp_path, [entry("e", engine)]) as running:
        assert await running.gateway.metric("rcp_gateway_restart_needed") == 0
        await running.turn_to([entry("e", engine)], {**SWIFT, "server": {"port": 1234, "workers": 3}})
        assert running.told("restart_needed")[0]["settings"] == ["server.port", "server.workers"]
        assert await running.gateway.metric("rcp_gateway_restart_needed") == 2
        await running.turn_to([entry("e", engine)])
        assert await running.gateway.metric("rcp_gateway_restart_needed") == 0


@pytest.mark.parametrize(
    ("file", "text", "reason"),
    [
        ("rcp.json", '{"engines": [', "is not JSON"),
        ("rcp.json", '{"engines": [{"id": "x", "url": "http://h", "timoutMs": 3}]}', "engines[0].timoutMs"),
        ("gateway.yaml", "server:\n  prot: 1\n", "server.prot"),
        ("rcp.json", None, "there is no such file"),
    ],
)
async def test_a_faulty_file_changes_nothing(
    engines: Any, tmp_path: Path, file: str, text: str | None, reason: str
) -> None:
    """The old set stays in force, the log says why and a metric that it is so; the next good file mends it (B124)."""
    engine = await engines()
    async with reloading(tmp_path, [entry("e", engine)]) as running:
        good = (tmp_path / file).read_text()
        if text is None:
            (tmp_path / file).unlink()
        else:
            (tmp_path / file).write_text(text)
        await running.reload.now()
        assert engines_of(await running.gateway.retrieve()) == ["e"]
        assert await running.gateway.metric("rcp_gateway_reload_success") == 0
        assert reason in str(running.told("reload_failed")[0]["faults"])
        assert reason in (running.reload.failure or "")
        assert reason in repr(running.reload)
        (tmp_path / file).write_text(good)
        await running.reload.now()
        assert await running.gateway.metric("rcp_gateway_reload_success") == 1
        assert await running.gateway.metric("rcp_gateway_reloads_total", outcome="failed") == 1
        assert await running.gateway.metric("rcp_gateway_reloads_total", outcome="ok") == 1
        assert repr(running.reload).endswith("in force>")


async def test_a_changed_entry_is_a_new_engine_that_knows_the_old_advertisement(engines: Any, tmp_path: Path) -> None:
    """Other wishes for an engine hold at once; it is asked without waiting for its handshake."""
    engine = await engines()
    async with reloading(tmp_path, [entry("e", engine)]) as running:
        before = running.gateway.state.engines.engines[0]
        await running.turn_to([entry("e", engine, weight=2.0)])
        now = running.gateway.state.engines.engines[0]
        assert now is not before
        assert now.entry.weight == 2.0
        assert now.advertisement == before.advertisement
        assert (await running.gateway.retrieve())["hits"]


async def held_back(engine: ScriptedEngine) -> asyncio.Event:
    """Let its handshakes wait for the event."""
    free = asyncio.Event()

    async def described(asked: Any) -> Any:
        await free.wait()
        return {
            "protocolVersion": 1,
            "server": {"name": engine.name, "version": "1"},
            "capabilities": engine.capabilities,
        }

    engine.answers["initialize"] = described
    return free


async def test_the_old_set_serves_until_one_of_the_new_is_warm(engines: Any, tmp_path: Path) -> None:
    """All engines are other ones: the old ones answer until a handshake has succeeded, and are asked no more then."""
    old, new = await engines(results=hits("old")), await engines(results=hits("new"))
    free = await held_back(new)
    async with reloading(tmp_path, [entry("old", old)]) as running:
        await running.turn_to([entry("new", new)])
        result = await running.gateway.retrieve()
        assert [hit["id"] for hit in result["hits"]] == ["old"]
        assert "degraded" not in result["_meta"]
        assert await running.gateway.metric("rcp_gateway_engine_warming", engine="new") == 1
        assert (await running.gateway.client.get("/readyz")).status_code == 200
        free.set()
        await running.reached()
        result = await running.gateway.retrieve()
        assert (engines_of(result), [hit["id"] for hit in result["hits"]]) == (["new"], ["new"])
        assert await running.gateway.metric("rcp_gateway_engine_warming", engine="new") == 0
        assert running.told("engine_warmed")[0]["engine"] == "new"


async def test_a_removed_engine_stays_only_where_nothing_else_is_warm(engines: Any, tmp_path: Path) -> None:
    """A tenant all of whose engines were replaced is served by the old ones; others ask them no more from the start."""
    old, new, other = [await engines(results=hits(name)) for name in ("old", "new", "other")]
    free = await held_back(new)
    keys = {name: [{"id": name, "sha256": sha256(name.encode()).hexdigest()}] for name in ("few", "all", "third")}
    seen = {"few": ["old", "new"], "all": ["*"], "third": ["old"]}
    tenants = tmp_path / "tenants.yaml"
    tenants.write_text(json.dumps({"tenants": {name: {"keys": keys[name], "engines": seen[name]} for name in keys}}))
    settings = {**SWIFT, "auth": {"mode": "keys", "tenants_file": str(tenants)}}

    async def answer(tenant: str) -> Json:
        message = {"jsonrpc": "2.0", "id": 1, "method": "retrieve", "params": {"query": "q"}}
        return (await running.gateway.post(message, headers={"X-API-Key": tenant})).json()

    async with reloading(tmp_path, [entry("old", old), entry("other", other)], settings) as running:
        await running.turn_to([entry("new", new), entry("other", other)], settings)
        assert [hit["id"] for hit in (await answer("few"))["result"]["hits"]] == ["old"]
        assert [hit["id"] for hit in (await answer("all"))["result"]["hits"]] == ["other"]
        assert "result" not in await answer("third"), "nothing comes in its place"
        free.set()
        await running.reached()
        assert [hit["id"] for hit in (await answer("few"))["result"]["hits"]] == ["new"]


async def test_one_address_under_two_ids_is_warned_of(engines: Any, tmp_path: Path) -> None:
    """The log names the two, however their URLs are written, and nothing is refused for it."""
    engine = await engines()
    again = engine.url.replace("http://", "HTTP://") + "/"
    async with reloading(tmp_path, [entry("a", engine), entry("b", again)]) as running:
        assert running.told("same_engine_twice")[0]["engines"] == ["a", "b"]
        await running.turn_to([entry("a", engine), entry("c", again)])
        assert running.told("same_engine_twice")[1]["engines"] == ["a", "c"]


async def test_series_come_and_go_with_engines(engines: Any, tmp_path: Path) -> None:
    """The series of an engine that left vanish, those of one that joined begin with 0, also if it comes back (B111)."""
    engine = await engines()
    async with reloading(tmp_path, [entry("a", engine), entry("b", engine)]) as running:
        await running.gateway.retrieve()
        await running.turn_to([entry("a", engine), entry("c", engine)])
        text = (await running.gateway.client.get("/metrics")).text
        assert 'engine="b"' not in text
        assert await running.gateway.metric("rcp_gateway_legs_total", engine="c", outcome="ok") == 0
        assert await running.gateway.metric("rcp_gateway_legs_total", engine="a", outcome="ok") == 1
        await running.turn_to([entry("a", engine), entry("b", engine)])
        assert await running.gateway.metric("rcp_gateway_legs_total", engine="b", outcome="ok") == 0


async def test_a_hundred_reloads_leave_nothing_behind(engines: Any, tmp_path: Path) -> None:
    """No connection, task, descriptor or series more than before, while requests are answered all the time."""
    engine = await engines()
    async with reloading(tmp_path, [entry("same", engine), entry("first", engine)]) as running:

        async def load() -> None:
            while True:
                assert (await running.gateway.retrieve())["hits"]

        await running.gateway.retrieve()
        before = await counted(running)
        connections = len(engine._writers)
        asking = asyncio.create_task(load())
        for number in range(100):
            await running.turn_to([entry("same", engine), entry(f"e{number}", engine)])
            await asyncio.sleep(0)
        await running.turn_to([entry("same", engine), entry("first", engine)])
        await running.reached()
        assert not asking.done()
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
        await running.gateway.retrieve()
        await until(lambda: "lingering" not in repr(running.gateway.state.engines))
        await until(lambda: len(engine._writers) <= connections)
        assert await counted(running) == before


async def counted(running: Reloading) -> tuple[int, int]:
    """(tasks of the gateway, series of the exposition)"""
    text = (await running.gateway.client.get("/metrics")).text
    tasks = [task for task in asyncio.all_tasks() if "ScriptedEngine" not in repr(task)]
    return len(tasks), len([line for line in text.splitlines() if not line.startswith("#")])


async def test_keys_come_and_go(engines: Any, tmp_path: Path) -> None:
    """A key that is gone from the file of tenants is refused at once, one that is new is known (B97)."""
    engine, keys = await engines(), tmp_path / "tenants.yaml"

    def write(*secrets: str) -> None:
        hashed = [{"id": secret, "sha256": sha256(secret.encode()).hexdigest()} for secret in secrets]
        keys.write_text(json.dumps({"tenants": {"red": {"keys": hashed}}}))

    async def status(secret: str) -> int:
        message = {"jsonrpc": "2.0", "id": 1, "method": "ping"}
        return (await running.gateway.post(message, headers={"X-API-Key": secret})).status_code

    write("old-key")
    settings = {**SWIFT, "auth": {"mode": "keys", "tenants_file": str(keys)}}
    async with reloading(tmp_path, [entry("e", engine)], settings) as running:
        assert (await status("old-key"), await status("new-key")) == (200, 401)
        write("new-key")
        assert running.reload._watch.changed()
        await running.reload.now()
        assert (await status("old-key"), await status("new-key")) == (401, 200)


async def test_a_tenant_s_own_blend_is_laid_over_the_new_settings(engines: Any, tmp_path: Path) -> None:
    """What a tenant does not say of the blend is as the settings have it now, not as they had it at the start."""
    tenants = tmp_path / "tenants.yaml"
    wishes = {"engines": ["*"], "roles": ["read"], "fusion": {"confidence_weight": 0.5}}
    tenants.write_text(json.dumps({"tenants": {"anonymous": wishes}}))
    settings = {**SWIFT, "auth": {"mode": "keys", "tenants_file": str(tenants)}}
    entries = [entry("e", await engines())]

    async def blend() -> tuple[int, float]:
        applied = (await running.gateway.retrieve())["_meta"]["x-gateway"]["fusion"]
        return applied["rrfK"], applied["confidenceWeight"]

    async with reloading(tmp_path, entries, settings) as running:
        assert await blend() == (60, 0.5)
        await running.turn_to(entries, {**settings, "fusion": {"rrf_k": 10, "confidence_weight": 0.9}})
        assert await blend() == (10, 0.5)


async def test_a_configmap_is_followed(engines: Any, tmp_path: Path) -> None:
    """A ConfigMap changes by swapping a symbolic link to a folder; it is noticed, in every worker, and so is SIGHUP."""
    one, two = await engines(), await engines()
    versions = [tmp_path / "..v1", tmp_path / "..v2"]
    for version, entries in zip(versions, ([entry("one", one)], [entry("two", two)]), strict=True):
        version.mkdir()
        write_files(version, entries, {"server": {"reload_seconds": 0.1}})
    mount = tmp_path / "mount"
    mount.mkdir()
    (mount / "..data").symlink_to(versions[0])
    for name in ("rcp.json", "gateway.yaml"):
        (mount / name).symlink_to(Path("..data") / name)
    async with gateway_process(mount, [], None, write=False) as gateway:
        (mount / "..fresh").symlink_to(versions[1])
        (mount / "..fresh").rename(mount / "..data")
        line = await gateway.until_told("reloaded")
        assert (line["joined"], line["left"]) == (["two"], ["one"])
        gateway.signal(signal.SIGHUP)
        assert (await gateway.until_told("reloaded", 2))["joined"] == []
        (versions[1] / "rcp.json").write_text(json.dumps({"engines": 3}))
        assert "engines" in str((await gateway.until_told("reload_failed"))["faults"])
        assert (await gateway.retrieve()).json()["result"]["hits"]
