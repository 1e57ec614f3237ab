"""Engine sources: files of other teams join the registry under guard rails, and a bad one touches no other."""

import asyncio
import json
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from app.__main__ import load
from app.api.reload import Reload
from app.main import build_app, build_state, sources_of
from app.settings.sources import Files
from tests.support.gateway_process import write_files
from tests.support.log_lines import LogLines, own_log
from tests.support.running_gateway import Json, RunningGateway, entry, lifespan, until
from tests.support.scripted_engine import ScriptedEngine
from tests.support.tenancy import bearer, result, tenant


class Sourced:
    """A gateway with engine sources that looks at its files only when asked to."""

    def __init__(self, folder: Path, gateway: RunningGateway, reload: Reload, log: LogLines) -> None:
        self.folder = folder
        self.gateway = gateway
        self.reload = reload
        self.log = log

    def write(self, name: str, entries: list[Json] | bytes) -> None:
        """Write one file of a source by renaming."""
        content = entries if isinstance(entries, bytes) else json.dumps({"engines": entries}).encode()
        target = self.folder / name
        target.parent.mkdir(exist_ok=True)
        (target.parent / ".new").write_bytes(content)
        (target.parent / ".new").rename(target)

    async def look(self) -> None:
        """Look at the sources once."""
        await self.reload.look_at_sources()

    @property
    def ids(self) -> list[str]:
        """The engines that serve."""
        return sorted(engine.id for engine in self.gateway.state.engines.engines)

    async def reached(self) -> None:
        """Wait until every engine has had a handshake."""
        await until(lambda: all(engine.advertisement for engine in self.gateway.state.engines.engines))

    def told(self, event: str) -> list[Json]:
        """The log lines of one event."""
        return [line for line in self.log.lines if line["event"] == event]


def source(folder: Path, name: str, **more: Any) -> Json:
    """The settings of a source whose files lie in a folder of its name, on loopback."""
    allow = {"hosts": ["127.0.0.1"], **more.pop("allow", {})}
    return {"name": name, "files": str(folder / name / "*.json"), "allow": allow, **more}


def member(engine_id: str, engine: Any) -> Json:
    """An entry within the default rails."""
    return entry(engine_id, engine, timeoutMs=2000)


@asynccontextmanager
async def sourced(
    folder: Path, main: list[Json], sources: list[Json], files: dict[str, Any], more: Json | None = None
) -> AsyncIterator[Sourced]:
    """A started gateway with these sources and files."""
    write_files(folder, main, {"registry": {"sources": sources}, "server": {"reload_seconds": 0}, **(more or {})})
    for one in sources:
        if "files" in one:
            Path(one["files"]).parent.mkdir(exist_ok=True)
    for name, content in files.items():
        (folder / name).write_bytes(
            content if isinstance(content, bytes) else json.dumps({"engines": content}).encode()
        )
    read = Files(folder / "rcp.json", folder / "gateway.yaml")
    with own_log() as log:
        loaded, settings_, tenants = read.load()
        sources_ = sources_of(loaded, settings_)
        state = build_state(loaded, settings_, tenants, sources=sources_)
        reload = Reload(state, read.load, read.watch(), sources=sources_)
        app: Any = build_app(state, reload)
        async with (
            lifespan(app),
            httpx2.AsyncClient(transport=httpx2.ASGITransport(app=app), base_url="http://gateway") as client,
        ):
            yield Sourced(folder, RunningGateway(state, client), reload, log)


async def test_a_file_joins_changes_and_leaves(engines: Any, tmp_path: Path) -> None:
    """Engines of a file serve like those of the registry; an entry that did not change keeps its engine object."""
    one, two, three = await engines(name="1"), await engines(name="2"), await engines(name="3")
    files = {"search/a.json": [member("search/a", two)]}
    async with sourced(tmp_path, [entry("own", one)], [source(tmp_path, "search")], files) as running:
        await running.reached()
        assert running.ids == ["own", "search/a"]
        kept = {engine.id: engine for engine in running.gateway.state.engines.engines}
        assert kept["search/a"].entry.id_namespace == "search"
        assert kept["search/a"].entry.max_trust == "community"
        running.write("search/b.json", [member("search/b", three)])
        await running.look()
        await running.reached()
        assert running.ids == ["own", "search/a", "search/b"]
        assert all(kept[engine.id] is engine for engine in running.gateway.state.engines.engines if engine.id in kept)
        assert running.told("source_reloaded")[-1]["joined"] == ["search/b"]
        assert one.connections == 1
        (tmp_path / "search/a.json").unlink()
        await running.look()
        assert running.ids == ["own", "search/b"]
        assert await running.gateway.metric("rcp_gateway_source_engines", source="search") == 1
        assert await running.gateway.metric("rcp_gateway_source_up", source="search") == 1


@pytest.mark.parametrize(
    "content", [b"", b"   ", b'{"engines": [', b"[]", b"\xff", b'{"engines": [], "engine": []}', b"{}"]
)
async def test_a_broken_file_keeps_its_last_engines(engines: Any, tmp_path: Path, content: bytes) -> None:
    """An empty or cut-off file never means "no engines", and is absent if it was never good."""
    engine = await engines()
    files = {"search/a.json": [member("search/a", engine)], "search/z.json": content}
    async with sourced(tmp_path, [], [source(tmp_path, "search")], files) as running:
        await running.reached()
        assert running.ids == ["search/a"]
        assert len(running.told("source_failed")) == 1
        running.write("search/a.json", content)
        await running.look()
        assert running.ids == ["search/a"]
        assert await running.gateway.metric("rcp_gateway_source_up", source="search") == 0
        (tmp_path / "search/z.json").unlink()
        running.write("search/a.json", [])
        await running.look()
        assert running.ids == []
        assert await running.gateway.metric("rcp_gateway_source_up", source="search") == 1
        assert len(engine.requests("initialize")) == 1


RAILS: list[tuple[str, Json, Json, str]] = [
    ("id_prefix", {"id": "other/a"}, {"id_prefix": "other/"}, "id"),
    ("namespace", {"idNamespace": "legal"}, {"namespace": "free"}, "idNamespace"),
    ("hosts", {"url": "http://10.4.0.7:9/rcp"}, {"hosts": ["10.4.0.0/16"]}, "url"),
    ("hosts", {"url": "http://a.search.svc:9/rcp"}, {"hosts": ["*.search.svc:9"]}, "url"),
    ("hosts", {"replicas": ["http://10.4.0.7:9/rcp"]}, {"hosts": ["127.0.0.1", "10.4.0.7"]}, "replicas[0]"),
    ("transports", {"command": ["true"], "url": None}, {"transports": ["stdio"]}, "command"),
    ("env", {"headers": {"authorization": "Bearer ${HOME}"}}, {"env": ["HO*"]}, "headers.authorization"),
    ("required", {"required": True}, {"required": True}, "required"),
    ("writer", {"writer": True}, {"writer": True}, "writer"),
    ("discover", {"discover": True}, {"discover": True}, "discover"),
    ("max_weight", {"weight": 1.5}, {"max_weight": 2}, "weight"),
    ("max_priority", {"priority": 1}, {"max_priority": 1}, "priority"),
    ("max_concurrency", {"maxConcurrency": 33}, {"max_concurrency": 33}, "maxConcurrency"),
    ("max_concurrency", {"maxWaiting": 257}, {"max_concurrency": 33}, "maxWaiting"),
    ("max_timeout_ms", {"timeoutMs": 2001}, {"max_timeout_ms": 2001}, "timeoutMs"),
    ("max_trust", {"maxTrust": "trusted"}, {"max_trust": "trusted"}, "maxTrust"),
    (
        "tls_files",
        {"url": "https://127.0.0.1:9/rcp", "tls": {"caFile": "ca.pem"}},
        {"tls_files": True},
        "tls",
    ),
]


@pytest.mark.parametrize(("rail", "claim", "allow", "key"), RAILS, ids=lambda value: str(value)[:24])
async def test_each_rail_refuses_and_accepts(tmp_path: Path, rail: str, claim: Json, allow: Json, key: str) -> None:
    """A broken rail is named with file and JSON path; the operator can lift each of them."""
    claimed = {"id": "search/a", "url": "http://127.0.0.1:9/rcp", **claim}
    claimed = {name: value for name, value in claimed.items() if value is not None}
    files = {"search/a.json": [claimed]}
    async with sourced(tmp_path, [], [source(tmp_path, "search")], files) as running:
        assert running.ids == []
        (line,) = running.told("source_failed")
        assert f"search/a.json: line 1, engine '{claimed['id']}': engines[0].{key}: rail {rail}" in line["faults"][0]
        assert os.environ["HOME"] not in json.dumps(line["faults"])
        allowed = {"registry": {"sources": [source(tmp_path, "search", allow=allow)]}, "server": {"reload_seconds": 0}}
        if "command" not in claim:
            write_files(tmp_path, [], allowed)
            await running.reload.now()
            assert running.ids == [claimed["id"]]
            # The operator takes it back: what broke the rails leaves at once.
            write_files(tmp_path, [], {"registry": {"sources": [source(tmp_path, "search")]}})
            await running.reload.now()
            assert running.ids == []


async def test_the_most_engines_of_a_source(tmp_path: Path) -> None:
    """The limit is on all files together, and the file that would exceed it is at fault."""
    made = [{"id": f"search/{n}", "url": f"http://127.0.0.1:9/{n}"} for n in range(4)]
    files = {"search/a.json": made[:2], "search/b.json": made[2:]}
    sources = [source(tmp_path, "search", allow={"max_engines": 3})]
    async with sourced(tmp_path, [], sources, files) as running:
        assert running.ids == ["search/0", "search/1"]
        assert "rail max_engines" in running.told("source_failed")[0]["faults"][0]
        running.write("search/b.json", made[2:3])
        await running.look()
        assert running.ids == ["search/0", "search/1", "search/2"]


async def test_ids_are_unique_over_all_files(tmp_path: Path) -> None:
    """The registry file wins, then the file that has had the id longest; ids move between files in one look."""
    one = {"id": "x/1", "url": "http://127.0.0.1:9/1"}
    sources = [source(tmp_path, name, allow={"id_prefix": "x/"}) for name in ("b", "a")]
    async with sourced(tmp_path, [], sources, {"b/f.json": [one]}) as running:
        running.write("a/f.json", [one])
        await running.look()
        origins = running.gateway.state.engines.origins
        assert origins["x/1"].source == "b"
        assert "already the id of an engine of another file" in running.told("source_failed")[0]["faults"][0]
        (tmp_path / "b/f.json").rename(tmp_path / "b/g.json")
        await running.look()
        assert running.gateway.state.engines.origins["x/1"].file.endswith("g.json")
        (tmp_path / "b/g.json").unlink()
        await running.look()
        assert running.gateway.state.engines.origins["x/1"].source == "a"
        write_files(tmp_path, [one], {"registry": {"sources": sources}})
        await running.reload.now()
        assert running.ids == ["x/1"]
        assert running.gateway.state.engines.origins == {}


async def test_a_source_that_shrinks_waits_for_a_second_look(tmp_path: Path) -> None:
    """More than half and more than three engines at once are removed only if the next look finds the same."""
    made = [{"id": f"search/{n}", "url": f"http://127.0.0.1:9/{n}"} for n in range(5)]
    async with sourced(tmp_path, [], [source(tmp_path, "search")], {"search/a.json": made}) as running:
        (tmp_path / "search/a.json").unlink()
        await running.look()
        assert len(running.ids) == 5
        assert running.told("source_shrinks")[0]["engines"] == [one["id"] for one in made]
        running.write("search/a.json", made)
        await running.look()
        running.write("search/a.json", made[:1])
        await running.look()
        assert len(running.ids) == 5
        await running.look()
        assert running.ids == ["search/0"]


async def test_files_that_are_passed_over(tmp_path: Path) -> None:
    """Dot files, links out of the folder, pipes and large files add no engine; a ConfigMap's links do."""
    one = [{"id": "search/1", "url": "http://127.0.0.1:9/1"}]
    async with sourced(tmp_path, [], [source(tmp_path, "search")], {}) as running:
        running.write("elsewhere/1.json", one)
        running.write("search/.hidden.json", one)
        (tmp_path / "search/link.json").symlink_to(tmp_path / "elsewhere/1.json")
        os.mkfifo(tmp_path / "search/pipe.json")
        running.write("search/large.json", b" " * 1_048_577)
        await running.look()
        assert running.ids == []
        faults = "\n".join(running.told("source_failed")[0]["faults"])
        assert "leads out of the folder" in faults
        assert "not a regular file" in faults
        assert "larger than" in faults
        running.write("search/..2026/2.json", one)
        (tmp_path / "search/..data").symlink_to("..2026")
        (tmp_path / "search/2.json").symlink_to("..data/2.json")
        await running.look()
        assert running.ids == ["search/1"]


async def test_tenants_of_a_source(engines: Any, tmp_path: Path) -> None:
    """Only the tenants of a source see its engines, however wide another tenant's patterns are."""
    one, two = await engines(), await engines()
    declared = {"tenants": {name: tenant("*", keys=(name,)) for name in ("search", "legal")}}
    (tmp_path / "tenants.json").write_text(json.dumps(declared))
    auth = {"auth": {"mode": ["keys"], "tenants_file": str(tmp_path / "tenants.json")}}
    sources = [source(tmp_path, "search", tenants=["search"])]
    files = {"search/a.json": [member("search/a", two)]}
    async with sourced(tmp_path, [entry("own", one)], sources, files, auth) as running:
        await running.reached()
        seen = {}
        for name in ("search", "legal"):
            answer = await result(running.gateway, name, "retrieve", {"query": "q"})
            seen[name] = [one["id"] for one in answer["_meta"]["x-gateway"]["engines"]]
        assert seen == {"search": ["own", "search/a"], "legal": ["own"]}
        refused = await running.gateway.post(b"{}", "/engines/search/a/rcp", bearer("legal"))
        unknown = await running.gateway.post(b"{}", "/engines/search/b/rcp", bearer("legal"))
        assert refused.text.replace("search/a", "search/b") == unknown.text
        write_files(tmp_path, [entry("own", one)], {"registry": {"sources": [source(tmp_path, "search")]}, **auth})
        await running.reload.now()
        answer = await result(running.gateway, "legal", "retrieve", {"query": "q"})
        assert len(answer["_meta"]["x-gateway"]["engines"]) == 2


WRITES = st.one_of(
    st.tuples(st.just("write"), st.sampled_from(["a", "b", "c"]), st.lists(st.integers(0, 5), max_size=4, unique=True)),
    st.tuples(st.just("cut"), st.sampled_from(["a", "b"]), st.integers(0, 80)),
    st.tuples(st.just("rename"), st.sampled_from(["a", "b"]), st.sampled_from(["b", "c"])),
    st.tuples(st.just("remove"), st.sampled_from(["a", "b", "c"]), st.none()),
    st.tuples(st.just("bad"), st.sampled_from(["a", "b"]), st.binary(max_size=30)),
    st.tuples(
        st.just("rail"),
        st.sampled_from(["a", "b"]),
        st.sampled_from(
            [
                {"id": "y/0"},
                {"id": "own"},
                {"url": "http://169.254.169.254/"},
                {"weight": 9},
                {"required": True},
                {"headers": {"x": "${HOME}"}},
                {"command": ["false"]},
            ]
        ),
    ),
)


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(steps=st.lists(WRITES, max_size=8))
async def test_no_file_of_one_source_touches_another(steps: list[Any], tmp_path_factory: Any) -> None:
    """Whatever team x does to its files, the engines of y and of the registry are the same objects, and answer."""
    folder = tmp_path_factory.mktemp("sources")
    own, theirs = ScriptedEngine(), ScriptedEngine()
    await own.start()
    await theirs.start()
    sources = [source(folder, "x"), source(folder, "y")]
    files = {"y/f.json": [member("y/0", theirs)]}
    try:
        async with sourced(folder, [member("own", own)], sources, files) as running:
            await running.reached()
            await running.gateway.retrieve()
            kept = {engine.id: engine for engine in running.gateway.state.engines.engines}
            connections = own.connections, theirs.connections
            for kind, name, what in steps:
                change(running, kind, folder / "x" / f"{name}.json", what)
                await running.look()
                now = {engine.id: engine for engine in running.gateway.state.engines.engines}
                assert all(now[name] is engine for name, engine in kept.items())
                assert all(name.startswith("x/") for name in now.keys() - kept.keys())
                answer = await running.gateway.retrieve()
                asked = {one["id"]: one["status"] for one in answer["_meta"]["x-gateway"]["engines"]}
                assert (asked["own"], asked["y/0"]) == ("ok", "ok")
            assert (own.connections, theirs.connections) == connections
            assert len(own.requests("initialize")) == len(theirs.requests("initialize")) == 1
            assert await running.gateway.metric("rcp_gateway_source_up", source="y") == 1
    finally:
        await own.stop()
        await theirs.stop()


def change(running: Sourced, kind: str, path: Path, what: Any) -> None:
    """One thing that a team does to a file."""
    closed = "http://127.0.0.1:9/rcp"
    if kind == "write":
        running.write(f"x/{path.name}", [{"id": f"x/{n}", "url": f"{closed}?{n}"} for n in what])
    elif kind == "cut" and path.exists():
        path.write_bytes(path.read_bytes()[:what])
    elif kind == "rename" and path.exists():
        path.rename(path.parent / f"{what}.json")
    elif kind == "remove":
        path.unlink(missing_ok=True)
    elif kind == "bad":
        path.write_bytes(what)
    elif kind == "rail":
        running.write(f"x/{path.name}", [{"id": "x/0", "url": closed, **what}])


def test_check_reports_sources(tmp_path: Path) -> None:
    """`check` names source, file, JSON path, rail and remedy; `--file` checks one file without its secrets."""
    sources = [source(tmp_path, "search", allow={"env": ["SEARCH_*"]})]
    write_files(tmp_path, [], {"registry": {"sources": sources}})
    (tmp_path / "search").mkdir()
    bad = tmp_path / "search" / "a.json"
    options = ["check", "--registry", str(tmp_path / "rcp.json"), "--config", str(tmp_path / "gateway.yaml")]
    bad.write_text(json.dumps({"engines": [{"id": "search/a", "url": "http://127.0.0.1:9/", "weight": 2}]}))
    outcome = CliRunner().invoke(load(), options)
    assert outcome.exit_code == 1
    assert "source 'search'" in outcome.output
    assert "engines[0].weight: rail max_weight: must be at most 1, found 2" in outcome.output
    assert "allow.max_weight" in outcome.output
    outcome = CliRunner().invoke(load(), [*options, "--source", "search", "--file", str(bad)])
    assert outcome.exit_code == 1
    assert "rail max_weight" in outcome.output
    headers = {"authorization": "Bearer ${SEARCH_TOKEN}"}
    bad.write_text(json.dumps({"engines": [{"id": "search/a", "url": "http://127.0.0.1:9/", "headers": headers}]}))
    outcome = CliRunner().invoke(load(), [*options, "--source", "search", "--file", str(bad)])
    assert outcome.exit_code == 0, outcome.output
    assert CliRunner().invoke(load(), [*options, "--source", "legal", "--file", str(bad)]).exit_code == 1
    assert CliRunner().invoke(load(), [*options, "--source", "search"]).exit_code == 2


async def test_a_document_at_a_url(engines: Any, tmp_path: Path) -> None:
    """304 and errors keep the last list; a redirect is not followed; the rails hold; /readyz does not wait."""
    engine = await engines()
    asked: list[str | None] = []
    answers: list[tuple[str, bytes]] = [("200 OK", json.dumps({"engines": [member("search/a", engine)]}).encode())]

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
        tags = [line.partition(": ")[2] for line in head.splitlines() if line.startswith("if-none-match")]
        asked.append(tags[0] if tags else None)
        status, body = answers[0]
        more = 'etag: "v1"\r\nlocation: /other\r\n'
        writer.write(f"HTTP/1.1 {status}\r\n{more}content-length: {len(body)}\r\nconnection: close\r\n\r\n".encode())
        writer.write(body)
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/search.json"
    sources = [{"name": "search", "url": url, "refresh_seconds": 1, "allow": {"hosts": ["127.0.0.1"]}}]
    async with server, sourced(tmp_path, [], sources, {}) as running:
        await until(lambda: running.ids == ["search/a"])
        assert asked[0] is None
        kept = running.gateway.state.engines.engines[0]
        for status, body, up in (
            ("304 Not Modified", b"", 1),
            ("302 Found", b"", 0),
            ("304 Not Modified", b"", 1),
            ("200 OK", b'{"engines": [', 0),
            ("503 Service Unavailable", b"", 0),
        ):
            answers[0] = status, body
            seen = len(asked)
            await until(lambda seen=seen: len(asked) > seen)  # type: ignore[misc]
            await until(lambda up=up: running.reload.sources.states[0].up == bool(up))  # type: ignore[misc]
            assert running.gateway.state.engines.engines == (kept,)
        assert '"v1"' in asked
        answers[0] = "200 OK", b'{"engines": []}'
        await until(lambda: running.ids == [])
