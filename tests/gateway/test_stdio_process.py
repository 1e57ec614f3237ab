"""`rcp-gateway stdio` as the process it is: its pipes, its files, its signals and its exit code."""

import asyncio
import json
import signal
import subprocess
from pathlib import Path

import pytest

from tests.gateway.conftest import Starter
from tests.support.mounted_gateway import mounted
from tests.support.running_gateway import PATIENCE, START_SECONDS, entry, until
from tests.support.scripted_engine import hang, hits
from tests.support.stdio_caller import PROJECT, StdioCaller, calling, command


async def hello(caller: StdioCaller) -> None:
    """Shake hands; the engines are known then."""
    caller.ask("hello", "initialize", protocolVersion=1)
    answer = await caller.message()
    assert "retrieve" in answer["result"]["capabilities"], answer


async def test_a_session_from_its_begin_to_its_end(engines: Starter, tmp_path: Path) -> None:
    """At once initialized with all engines, answered, ended with its stdin: exit code 0, only protocol on stdout."""
    async with calling(command(tmp_path, [entry("docs", await engines())])) as caller:
        await hello(caller)
        caller.ask(1, "retrieve", query="søk\u2028")
        assert [hit["id"] for hit in (await caller.message())["result"]["hits"]] == ["a", "b", "c"]
        for number in range(20):
            caller.ask(number, "retrieve", query="q")
        code, out, err = await caller.end()
    assert code == 0
    assert sorted(json.loads(line)["id"] for line in out.splitlines()) == list(range(20))
    events = [json.loads(line)["event"] for line in err.splitlines()]
    assert (events[0], events[-1], events.count("request")) == ("settings", "stopped", 22)


async def test_an_engine_that_is_not_there_does_not_keep_it(engines: Starter, tmp_path: Path) -> None:
    """`initialize` waits for engines that may still come up, and not for one that refuses."""
    entries = [entry("docs", await engines()), entry("gone", "http://127.0.0.1:9/rcp")]
    async with calling(command(tmp_path, entries)) as caller:
        await hello(caller)
        caller.ask(1, "retrieve", query="q")
        report = (await caller.message())["result"]["_meta"]["x-gateway"]["engines"]
        assert {engine["id"]: engine["status"] for engine in report} == {"docs": "ok", "gone": "skipped"}
        assert (await caller.end())[0] == 0


async def test_engines_of_a_gateway_are_there_at_once(engines: Starter, tmp_path: Path) -> None:
    """`initialize` waits for engines that join through a gateway as well."""
    async with mounted([entry("docs", await engines())], {"server": {"id": "inner"}}) as inner:
        argv = command(tmp_path, [entry("in", f"{inner.url}/rcp", discover=True, timeoutMs=20_000)])
        async with calling(argv) as caller:
            await hello(caller)
            caller.ask(1, "retrieve", query="q")
            report = (await caller.message())["result"]["_meta"]["x-gateway"]["engines"]
            assert [(engine["id"], engine["status"]) for engine in report] == [("in/docs", "ok")]
            assert (await caller.end())[0] == 0


@pytest.mark.parametrize("told", [True, False], ids=["on SIGHUP", "by itself"])
async def test_it_keeps_to_its_files(engines: Starter, tmp_path: Path, told: bool) -> None:
    """A faulty file changes nothing. An engine that has left the registry fails; one that joined it is for the next
    session, since this one keeps what it began with."""
    docs, more = entry("docs", await engines()), entry("more", await engines(results=hits("z")))
    settings = f"server: {{reload_seconds: {0 if told else 0.05}}}"
    async with calling(command(tmp_path, [docs], settings)) as caller:
        await hello(caller)
        (tmp_path / "rcp.json").write_text("{")
        if told:
            caller.process.send_signal(signal.SIGHUP)
        assert await asked(caller) == {"docs": "ok"}
        command(tmp_path, [more], settings)
        async with asyncio.timeout(PATIENCE):
            while await asked(caller) != -32010:
                if told:
                    caller.process.send_signal(signal.SIGHUP)
                await asyncio.sleep(0.05)
        code, _, err = await caller.end()
    assert code == 0
    events = [json.loads(line) for line in err.splitlines()]
    assert ["more"] in [line["joined"] for line in events if line["event"] == "reloaded"]
    assert "Traceback" not in err


async def asked(caller: StdioCaller) -> dict[str, str] | int:
    """What became of each engine of one question, or the code of its error."""
    caller.ask(1, "retrieve", query="q")
    answer = await caller.message()
    if "error" in answer:
        code: int = answer["error"]["code"]
        return code
    report = answer["result"]["_meta"]["x-gateway"]["engines"]
    return {engine["id"]: engine["status"] for engine in report}


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_ends_it(engines: Starter, tmp_path: Path, number: signal.Signals) -> None:
    """Told to stop, it answers what is under way with -32010 and exits with 0, though its stdin stays open."""
    stuck = await engines()
    stuck.answers["retrieve"] = hang
    settings = "retrieve: {deadline_ms: 60000}"
    async with calling(command(tmp_path, [entry("docs", stuck, timeoutMs=60_000)], settings)) as caller:
        await hello(caller)
        caller.ask(1, "retrieve", query="q")
        await until(lambda: bool(stuck.requests()))
        caller.process.send_signal(number)
        assert (await caller.message())["error"]["code"] == -32010
        assert await asyncio.wait_for(caller.process.wait(), PATIENCE) == 0


async def test_a_caller_that_does_not_read_can_still_end_it(engines: Starter, tmp_path: Path) -> None:
    """With its stdout full it takes no more questions; SIGTERM ends it all the same."""
    big = await engines(results=[{"id": "a", "score": 1, "text": "x" * 1_000_000}])
    async with calling(command(tmp_path, [entry("docs", big)])) as caller:
        await hello(caller)
        caller.stdout._transport.pause_reading()  # type: ignore[attr-defined]
        for number in range(40):
            caller.ask(number, "retrieve", query="q" * 10_000)
        await until(lambda: len(big.requests()) >= 2)
        caller.process.send_signal(signal.SIGTERM)
        waiting = asyncio.create_task(caller.process.wait())
        caller.stdout._transport.resume_reading()  # type: ignore[attr-defined]
        assert await asyncio.wait_for(waiting, PATIENCE) == 0


async def test_shutdown_ends_it(engines: Starter, tmp_path: Path) -> None:
    """`shutdown` is answered, then the process ends with 0, though its stdin stays open."""
    async with calling(command(tmp_path, [entry("docs", await engines())])) as caller:
        await hello(caller)
        caller.ask("bye", "shutdown")
        assert await caller.message() == {"jsonrpc": "2.0", "id": "bye", "result": {}}
        assert await asyncio.wait_for(caller.process.wait(), PATIENCE) == 0


def test_files_in_place_of_pipes(tmp_path: Path) -> None:
    """Questions from a file, answers to a file, the log with them: it works as with pipes."""
    asked = tmp_path / "asked"
    asked.write_text('{"jsonrpc":"2.0","id":1,"method":"ping"}\n\n{"jsonrpc":"2.0","id":2,"method":"nonsense"}')
    argv = command(tmp_path, [])
    with asked.open("rb") as questions, (tmp_path / "answers").open("wb") as answers:
        done = subprocess.run(
            argv,
            stdin=questions,
            stdout=answers,
            stderr=subprocess.DEVNULL,
            cwd=PROJECT,
            timeout=START_SECONDS,
            check=False,
        )
    assert done.returncode == 0
    lines = [json.loads(line) for line in (tmp_path / "answers").read_text().splitlines()]
    assert {line["id"]: line.get("error", {}).get("code") for line in lines} == {1: None, 2: -32001}


def test_a_faulty_file_is_reported_on_stderr(tmp_path: Path) -> None:
    """What keeps it from serving is told as by the other commands, and nothing comes on stdout."""
    argv = command(tmp_path, [{"id": "x"}])
    done = subprocess.run(
        argv, input="", capture_output=True, text=True, cwd=PROJECT, timeout=START_SECONDS, check=False
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert "engines[0]" in done.stderr
    assert "Traceback" not in done.stderr
