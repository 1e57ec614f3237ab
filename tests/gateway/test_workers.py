"""Several workers as one service: one set of metrics, one word to all, and none is missed for long."""

import asyncio
import os
import signal
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.support.gateway_process import GatewayProcess, gateway_process, write_files
from tests.support.running_gateway import PATIENCE, entry, until

SETTINGS = {"server": {"drain_seconds": 3600, "reload_seconds": 0.2}}
SERIES = 'rcp_gateway_requests_total{method="retrieve",outcome="ok"}'


async def asked(gateway: GatewayProcess, times: int) -> int:
    """How many of so many retrieves, each over a connection of its own, were answered well."""
    good = 0
    for _ in range(times):
        async with httpx2.AsyncClient(timeout=PATIENCE) as client:
            message = {"jsonrpc": "2.0", "id": 1, "method": "retrieve", "params": {"query": "q"}}
            good += (await client.post(gateway.url(), json=message)).status_code == 200
    return good


async def counted(gateway: GatewayProcess, value: float) -> None:
    """Wait until a scrape shows so many answers: workers share their numbers once a second."""
    async with asyncio.timeout(PATIENCE):
        while await gateway.metric(SERIES) != value:
            await asyncio.sleep(0.05)


async def all_serve(gateway: GatewayProcess, times: int) -> list[int]:
    """The process ids of all workers that have begun to serve so far, once there are so many."""
    await gateway.until_told("worker_serves", times)
    return [line["pid"] for line in gateway.told("worker_serves")]


async def test_workers_are_one_service(engines: Any, tmp_path: Path) -> None:
    """Counts add up whoever is asked, and stay when a worker dies and is replaced; both hear of a reload and of the
    end, which a second word hastens; exit code 0 (B106, B108)."""
    one, two = await engines(), await engines()
    async with gateway_process(tmp_path, [entry("one", one)], SETTINGS, "--workers", "2") as gateway:
        pids = await all_serve(gateway, 2)
        assert await asked(gateway, 12) == 12
        await counted(gateway, 12)
        os.kill(pids[1], signal.SIGKILL)
        ended = await gateway.until_told("worker_ended")
        assert (ended["pid"], ended["code"]) == (pids[1], -9)
        await all_serve(gateway, 3)
        assert await asked(gateway, 12) == 12
        await counted(gateway, 24)
        assert await gateway.metric("rcp_gateway_requests_in_flight") == 0
        write_files(tmp_path, [entry("two", two)], SETTINGS)
        await gateway.until_told("reloaded", 2)
        gateway.signal(signal.SIGHUP)
        await gateway.until_told("reloaded", 4)
        assert 'engine="one"' not in (await gateway.client.get(gateway.url("/metrics"))).text
        gateway.signal(signal.SIGTERM)
        await gateway.until_told("draining", 2)
        assert await gateway.ready() == 503
        assert await asked(gateway, 4) == 4
        gateway.signal(signal.SIGTERM)
        assert await gateway.ended() == 0
    assert len(gateway.told("drained")) == 2
    assert "Traceback" not in gateway.text


async def test_ctrl_c_ends_them_in_good_order(engines: Any, tmp_path: Path) -> None:
    """A terminal sends SIGINT to all processes: each request under way is finished all the same."""
    engine = await engines()
    free = asyncio.Event()

    async def held(request: Any) -> Any:
        await free.wait()
        return {"hits": []}

    engine.answers["retrieve"] = held
    entries = [entry("e", engine, timeoutMs=60_000)]
    async with gateway_process(tmp_path, entries, None, "--workers", "2") as gateway:
        await all_serve(gateway, 2)
        asking = asyncio.create_task(gateway.retrieve())
        await until(lambda: len(engine.requests()) == 1)
        os.killpg(gateway.process.pid, signal.SIGINT)
        await gateway.until_told("finishing", 2)
        free.set()
        assert (await asking).status_code == 200
        assert await gateway.ended() == 0
    assert not gateway.told("draining")


async def test_workers_do_not_outlive_their_parent(engines: Any, tmp_path: Path) -> None:
    """If the parent is killed by force its workers end by themselves, and so do the engines' processes."""
    child = {"id": "child", "command": ["sh", "-c", f"echo $$ >> {tmp_path}/pids; cat > /dev/null"]}
    entries = [entry("e", await engines()), child]
    async with gateway_process(tmp_path, entries, None, "--workers", "2") as gateway:
        pids = await all_serve(gateway, 2)
        await until(lambda: len(children(tmp_path)) == 2)
        gateway.process.kill()
        await until(lambda: not any(map(runs, pids)))
        await until(lambda: not any(map(runs, children(tmp_path))))


STUBBORN = """trap "" TERM HUP
sh -c 'trap "" TERM HUP; echo $$ >> PIDS; while :; do sleep 1; done' &
echo $$ >> PIDS
while :; do sleep 1; done"""
"""An engine that ignores the end of its stdin and every polite signal, with a child that does the same."""


@pytest.mark.parametrize("workers", [1, 2])
async def test_a_killed_process_leaves_no_engine_process(engines: Any, tmp_path: Path, workers: int) -> None:
    """`kill -9` of the gateway, or of one of its workers, ends its engines' processes and theirs too."""
    child = {"id": "child", "command": ["sh", "-c", STUBBORN.replace("PIDS", str(tmp_path / "pids"))]}
    entries = [entry("e", await engines()), child]
    async with gateway_process(tmp_path, entries, None, "--workers", str(workers)) as gateway:
        await until(lambda: len(children(tmp_path)) == 2 * workers)
        started = children(tmp_path)
        assert all(map(runs, started))
        if workers == 1:
            gateway.process.kill()
            await until(lambda: not any(map(runs, started)))
        else:
            pids = await all_serve(gateway, workers)
            of_one = [pid for pid in started if parent_of(pid) == pids[0]]
            assert len(of_one) == 1
            os.kill(pids[0], signal.SIGKILL)
            await until(lambda: sum(map(runs, started)) == 2)
            await until(lambda: len(children(tmp_path)) == 6)  # the worker that takes its place has its own
            gateway.process.kill()
            await until(lambda: not any(map(runs, children(tmp_path))))


def parent_of(pid: int) -> int:
    """The process id of its parent."""
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def children(folder: Path) -> list[int]:
    """The process ids of the engines' processes that were started."""
    file = folder / "pids"
    return [int(line) for line in file.read_text().splitlines()] if file.exists() else []


def runs(pid: int) -> bool:
    """Whether there is such a process and it is no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


async def test_a_worker_that_hangs_is_replaced(engines: Any, tmp_path: Path) -> None:
    """One that is there and does nothing any more (stopped, or in a loop without end) is killed, and its place filled;
    one that only has nothing to do is let be."""
    settings = {"server": {"worker_timeout_seconds": 10, "drain_seconds": 0, "reload_seconds": 0}}
    async with gateway_process(tmp_path, [entry("e", await engines())], settings, "--workers", "2") as gateway:
        pids = await all_serve(gateway, 2)
        os.kill(pids[0], signal.SIGSTOP)
        hung = await gateway.until_told("worker_hung")
        ended = await gateway.until_told("worker_ended")
        assert (hung["pid"], ended["pid"], ended["code"]) == (pids[0], pids[0], -9)
        await all_serve(gateway, 3)
        assert await asked(gateway, 6) == 6
        gateway.signal(signal.SIGTERM)
        assert await gateway.ended() == 0
    assert [line["pid"] for line in gateway.told("worker_ended")] == [pids[0]]


async def test_workers_that_cannot_start_end_the_whole(tmp_path: Path, engines: Any) -> None:
    """If no worker comes to serve there is nothing to wait for: exit code 1, and the log says so."""
    settings = {"server": {"reload_seconds": 0}}
    async with gateway_process(
        tmp_path, [entry("e", await engines())], settings, "--workers", "2", reach=False
    ) as gateway:
        (tmp_path / "rcp.json").write_text("{")
        assert await gateway.ended() == 1
    assert gateway.told("no_worker_serves")


async def test_a_worker_that_cannot_be_replaced_at_once_takes_no_other_with_it(engines: Any, tmp_path: Path) -> None:
    """While a file is faulty no worker can start: those that serve go on, each failure is told in one line that names
    the fault, and once the file is mended the place is filled."""
    entries, settings = [entry("e", await engines())], {"server": {"drain_seconds": 0, "reload_seconds": 0}}
    async with gateway_process(tmp_path, entries, settings, "--workers", "2") as gateway:
        pids = await all_serve(gateway, 2)
        (tmp_path / "rcp.json").write_text("{")
        os.kill(pids[1], signal.SIGKILL)
        failed = await gateway.until_told("start_failed", 2)
        assert (failed["worker"], len(failed["faults"])) == (gateway.told("worker_ended")[0]["worker"], 1)
        assert failed["file"].endswith("rcp.json")
        assert await asked(gateway, 4) == 4
        write_files(tmp_path, entries, settings)
        await all_serve(gateway, 3)
        assert await asked(gateway, 4) == 4
        gateway.signal(signal.SIGTERM)
        assert await gateway.ended() == 0
    assert not gateway.told("no_worker_serves")
    assert "Traceback" not in gateway.text
