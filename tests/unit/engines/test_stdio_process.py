"""The life of an engine's process: started, found dead, started again after a pause, ended with all that it started."""

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from app.engines.stdio import HEALTHY_SECONDS, START_SECONDS, Backoff, StdioTransport
from app.protocol.errors import ConnectFailed, LegError, ProtocolViolation
from tests.support.running_gateway import until
from tests.support.stdio_engine import (
    PATIENCE,
    StillClock,
    ask,
    on_both_loops,
    open_files,
    opened,
    peer,
    process_gone,
)

ROOT = str(Path(__file__).parents[3])
STUBBORN_FAMILY = [
    "sh",
    "-c",
    """sh -c 'trap "" TERM; echo $$ >&2; while :; do sleep 0.1; done' & trap "" HUP; read line; wait""",
]


async def failure(transport: StdioTransport, *steps: list[Any], **options: Any) -> LegError:
    """What a call fails with."""
    with pytest.raises(LegError) as caught:
        await ask(transport, *steps, **options)
    return caught.value


@on_both_loops
async def test_it_starts_with_the_first_call_or_when_asked() -> None:
    """Nothing runs before; many first calls start one process; `generation` tells."""
    async with opened() as transport:
        assert transport.generation == 0
        assert "never started" in repr(transport)
        results = await asyncio.gather(*(ask(transport) for _ in range(10)))
        assert len({result["pid"] for result in results}) == 1
        await transport.start()
        assert transport.generation == 1
        assert f"pid {results[0]['pid']}" in repr(transport)


@on_both_loops
async def test_a_process_that_dies_fails_its_calls_with_its_last_words() -> None:
    """Every call in flight names the exit status; the last line on stderr, cleaned, is for the log alone."""
    log: list[str] = []
    async with opened(log=log.append) as transport:
        await ask(transport)
        held = [asyncio.ensure_future(failure(transport, ["hold"])) for _ in range(3)]
        await until(lambda: "3 in flight" in repr(transport))
        fault = await failure(transport, ["stderr", "first\nout of \x1b[31mmemory\n\n"], ["exit", 3])
        for each in [fault, *await asyncio.gather(*held)]:
            assert isinstance(each, ProtocolViolation)
            assert each.message.endswith("exited with status 3")
        assert log[-1] == "[the engine's process exited with status 3; last line on stderr: out of  [31mmemory]"
        assert "0 in flight" in repr(transport)


@on_both_loops
async def test_a_killed_process_is_named_by_its_signal() -> None:
    """SIGKILL from outside is told as such."""
    async with opened() as transport:
        await ask(transport)
        assert "was killed by SIGKILL" in (await failure(transport, ["kill"])).message


@on_both_loops
async def test_an_answer_written_just_before_the_end_still_counts() -> None:
    """What is in the pipe when the process exits is read first, also without its newline."""
    async with opened() as transport:
        last = '{"jsonrpc":"2.0","id":{id},"result":{"n":1}}'
        assert await ask(transport, ["write", last], ["exit", 0]) == {"n": 1}
        await until(lambda: "exited with status 0" in repr(transport))


async def test_an_answer_torn_by_the_end_tells_the_exit_status() -> None:
    """Half an answer is no reason of its own: the death of the process is."""
    async with opened() as transport:
        await ask(transport)
        fault = await failure(transport, ["write", '{"jsonrpc":"2.0","id":{id},"result":{"n'], ["exit", 4])
        assert "exited with status 4" in fault.message


@on_both_loops
async def test_closed_pipes_are_an_end_too() -> None:
    """A process that closes its stdout can answer nothing more: it is killed and its calls fail."""
    async with opened() as transport:
        pid = (await ask(transport))["pid"]
        assert "closed its pipes and was killed" in (await failure(transport, ["close", 1], ["hold"])).message
        await until(lambda: process_gone(pid))


@on_both_loops
async def test_it_is_started_again_after_a_pause_that_doubles() -> None:
    """Within the pause calls fail fast and say when."""
    clock = StillClock()
    async with opened(peer("exit", "7", "no index\n"), clock=clock) as transport:
        for pause in (0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 12.8):
            fault = await failure(transport)
            assert isinstance(fault, ConnectFailed)
            assert fault.message.endswith("the engine's process exited with status 7")  # in the start or after it
            fault = await failure(transport)
            assert isinstance(fault, ConnectFailed)
            assert fault.message == f"started again in {pause:.1f} s: the engine's process exited with status 7"
            clock.now += pause
        assert transport.generation == 8


async def test_a_process_that_ran_well_for_a_while_resets_the_pause() -> None:
    """After a process that answered and lived long enough, the next pause is the first one again."""
    clock = StillClock()
    async with opened(clock=clock, backoff=Backoff(pause=4.0)) as transport:
        await ask(transport)
        clock.now += HEALTHY_SECONDS
        await failure(transport, ["exit", 1])
        assert "started again in 0.1 s" in (await failure(transport)).message
        clock.now += 0.1
        await ask(transport)
        assert transport.generation == 2


@pytest.mark.parametrize(
    ("method", "pauses"), [("retrieve", [0.1, 0.2, 0.4, 0.4, 0.4]), ("initialize", [0.1, 0.2, 0.4, 0.8, 1.0])]
)
async def test_a_handshake_alone_does_not_make_the_pause_short(method: str, pauses: list[float]) -> None:
    """A process that dies after it served is soon there again; one that only shakes hands backs off much further."""
    clock, ends = StillClock(), []

    def ended(how: str, seconds: float, times: int) -> None:
        ends.append((seconds, times))

    async with opened(clock=clock, backoff=Backoff(longest=0.4, longest_idle=1.0), ended=ended) as transport:
        for pause in pauses:
            await asyncio.wait_for(transport.call(method, {"do": [["ok"]]}), PATIENCE)
            await failure(transport, ["exit", 1])
            clock.now += pause
        assert ends == [(pause, number) for number, pause in enumerate(pauses, 1)]


async def test_a_process_that_answers_no_call_any_more_is_killed_and_started_again() -> None:
    """Calls under way together are one silence; three of these in a row, and the process is replaced."""
    ends: list[str] = []
    async with opened(ended=lambda how, seconds, times: ends.append(how)) as transport:
        pid = (await ask(transport))["pid"]
        for _ in range(2):
            held = [asyncio.ensure_future(ask(transport, ["hold"])) for _ in range(8)]
            await until(lambda: "8 in flight" in repr(transport))
            for call in held:
                call.cancel()
            for call in held:
                await asyncio.wait([call])
                transport.overdue()
        assert not ends
        await ask(transport)
        for _ in range(3):
            assert not ends
            call = asyncio.ensure_future(ask(transport, ["hold"]))
            await until(lambda: "1 in flight" in repr(transport))
            call.cancel()
            await asyncio.wait([call])
            transport.overdue()
        await until(lambda: process_gone(pid) and bool(ends))
        assert ends == ["the engine's process left 3 calls in a row unanswered and was killed"]


async def test_a_process_that_is_still_loading_is_left_alone() -> None:
    """Before its first answer it is not taken for hung until it has had two minutes."""
    clock = StillClock()
    async with opened(peer("deaf"), clock=clock) as transport:

        async def silence() -> None:
            call = asyncio.ensure_future(ask(transport))
            await until(lambda: "1 in flight" in repr(transport))
            call.cancel()
            await asyncio.wait([call])
            transport.overdue()

        for _ in range(5):
            await silence()
        assert transport._backoff.exits == 0
        clock.now += START_SECONDS
        await silence()
        await until(lambda: transport._backoff.exits == 1)


@pytest.mark.parametrize(
    ("command", "reason"),
    [
        (["/nonexistent/engine"], "cannot start '/nonexistent/engine': No such file or directory"),
        (["/"], "cannot start '/': Permission denied"),
        (["/dev/null"], "cannot start '/dev/null': Permission denied"),
    ],
)
@pytest.mark.parametrize("idempotent", [True, False])
async def test_a_command_that_cannot_run_is_a_failure_to_connect(
    command: list[str], reason: str, idempotent: bool
) -> None:
    """The reason is the system's, the arguments are not shown, and descriptors are not lost."""
    before = open_files()
    async with opened([*command, "--token=secret"]) as transport:
        fault = await failure(transport, idempotent=idempotent)
        assert isinstance(fault, ConnectFailed)
        assert reason in fault.message
        assert "secret" not in fault.message
        assert transport.generation == 0
        assert open_files() <= before


@on_both_loops
async def test_a_missing_command_is_the_same_on_both_loops() -> None:
    """Each loop's own way to fail at starting is told alike."""
    before = open_files()
    async with opened(["/nonexistent/engine"]) as transport:
        fault = await failure(transport)
        assert fault.message == "started again in 0.1 s: cannot start '/nonexistent/engine': No such file or directory"
    await until(lambda: open_files() <= before)


@on_both_loops
async def test_a_process_that_exits_at_once_is_a_failure_to_connect() -> None:
    """A shell that does not find the engine says so on stderr, and that reaches the log; the caller has the status."""
    log: list[str] = []
    async with opened(["sh", "-c", "exec no-such-engine"], log=log.append) as transport:
        fault = await failure(transport)
        assert isinstance(fault, ConnectFailed)
        assert fault.message.endswith("the engine's process exited with status 127")
        await until(lambda: any("not found" in line for line in log))


async def test_a_request_that_must_not_be_repeated_is_never_called_unsent() -> None:
    """What may have reached a process before it died is no failure to connect, unless it may be repeated."""
    async with opened() as transport:
        assert isinstance(await failure(transport, ["exit", 1], idempotent=False), ProtocolViolation)
    async with opened() as transport:
        assert isinstance(await failure(transport, ["exit", 1]), ConnectFailed)


async def test_a_call_that_still_waited_for_the_pipe_was_not_sent() -> None:
    """A request not a byte of which was written fails to connect, whatever its kind."""
    async with opened() as transport:
        pid = (await ask(transport))["pid"]
        os.kill(pid, signal.SIGSTOP)
        text = "x" * 1_000_000
        calls = [asyncio.ensure_future(failure(transport, echo=text, idempotent=False)) for _ in range(3)]
        await until(lambda: "2 lines wait for its stdin" in repr(transport))
        os.kill(pid, signal.SIGKILL)
        assert [type(fault) for fault in await asyncio.gather(*calls)] == [
            ProtocolViolation,
            ConnectFailed,
            ConnectFailed,
        ]


@on_both_loops
async def test_close_lets_a_good_engine_end_by_itself() -> None:
    """EOF on stdin is enough, also while another child of ours runs: the status is 0, no signal was needed."""
    async with opened() as other, opened() as transport:
        await ask(transport)
        pid = (await ask(other))["pid"]
        child = transport._child
        await transport.close()
        assert child is not None
        assert child.status == 0
        assert (await ask(other))["pid"] == pid


@on_both_loops
async def test_close_ends_calls_under_way_and_refuses_later_ones() -> None:
    """Both fail to connect with `closed`; closing twice is harmless."""
    async with opened() as transport:
        call = asyncio.ensure_future(failure(transport, ["hold"]))
        await until(lambda: "1 in flight" in repr(transport))
        await asyncio.gather(transport.close(), transport.close())
        for fault in (await call, await failure(transport)):
            assert isinstance(fault, ConnectFailed)
            assert fault.message == "closed"
        assert "closed" in repr(transport)


@on_both_loops
async def test_close_while_starting_leaves_nothing() -> None:
    """A process that comes up while we close is ended, and the call that started it fails."""
    async with opened() as transport:
        call = asyncio.ensure_future(failure(transport))
        while transport._starting is None:
            await asyncio.sleep(0)
        await transport.close()
        assert (await call).message == "closed"


@on_both_loops
async def test_a_cancelled_first_call_does_not_stop_the_start() -> None:
    """The process comes up for the others that wait for it."""
    async with opened() as transport:
        first, second = asyncio.ensure_future(ask(transport)), asyncio.ensure_future(ask(transport))
        while transport._starting is None:
            await asyncio.sleep(0)
        first.cancel()
        assert (await second)["method"] == "retrieve"
        assert first.cancelled()
        assert transport.generation == 1


@on_both_loops
async def test_close_takes_the_whole_family_along() -> None:
    """A shell and a grandchild that ignores SIGTERM are both gone."""
    async with opened(STUBBORN_FAMILY, grace=0.05) as transport:
        await transport.start()
        await until(lambda: transport.stderr_tail.endswith("\n"))
        child = transport._child
        assert child is not None
        family = child.pid, int(transport.stderr_tail)
        assert not any(process_gone(pid) for pid in family)
    await until(lambda: all(process_gone(pid) for pid in family))


@on_both_loops
async def test_a_dead_leader_takes_the_family_along() -> None:
    """When the process that we started dies, what it started is killed too, though it keeps the pipes open."""
    command = [
        "sh",
        "-c",
        f"""sh -c 'trap "" TERM; echo $$ >&2; while :; do sleep 0.1; done' & exec {" ".join(peer())}""",
    ]
    async with opened(command) as transport:
        await until(lambda: transport.stderr_tail.endswith("\n")) if await ask(transport) else None
        grandchild = int(transport.stderr_tail)
        assert "exited with status 5" in (await failure(transport, ["exit", 5])).message
        await until(lambda: process_gone(grandchild))


@on_both_loops
async def test_an_engine_that_ignores_eof_and_sigterm_is_killed() -> None:
    """SIGKILL comes after two graces, and the process is reaped."""
    async with opened(peer("stubborn"), grace=0.05) as transport:
        pid = (await ask(transport))["pid"]
        child = transport._child
    assert child is not None
    assert child.status == -signal.SIGKILL
    assert not Path(f"/proc/{pid}").exists()


@on_both_loops
async def test_a_cancelled_close_kills_at_once() -> None:
    """Whoever has no time for the graces still leaves no process."""
    async with opened(peer("stubborn"), grace=60.0) as transport:
        pid = (await ask(transport))["pid"]
        child = transport._child
        assert child is not None
        closing = asyncio.ensure_future(transport.close())
        await asyncio.sleep(0)
        closing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await closing
        await until(lambda: process_gone(pid) and child.status == -signal.SIGKILL)


@on_both_loops
async def test_no_descriptor_is_lost() -> None:
    """After close, whatever happened before, as many files are open as at the start."""
    async with opened() as transport:  # what a loop opens once, at its first child
        await ask(transport)
    before = open_files()
    clock = StillClock()
    async with opened(clock=clock) as transport:
        for _ in range(5):
            await ask(transport)
            await failure(transport, ["exit", 1])
            clock.now += 10
        assert transport.generation == 5
    await until(lambda: open_files() <= before)


HOST = """
import asyncio, ctypes, os, sys
from app.engines.reaper import REAPER
from app.engines.stdio import StdioTransport
from app.settings.schema import EngineEntry, EnginesSettings

async def main():
    entry = EngineEntry(id="peer", command=sys.argv[1:])
    transport = StdioTransport(entry, EnginesSettings(), grace=0.05)
    await transport.start()
    while "\\n" not in transport.stderr_tail:
        await asyncio.sleep(0.005)
    print(transport.stderr_tail.strip(), flush=True)
    await asyncio.to_thread(sys.stdin.readline)
    await transport.close()
    REAPER.close()
    try:
        print(os.waitpid(-1, os.WNOHANG))
    except ChildProcessError:
        print("no children")

ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)  # PR_SET_CHILD_SUBREAPER: orphans come to us, as to PID 1
asyncio.run(main())
"""


@pytest.mark.skipif(sys.platform != "linux", reason="subreapers are Linux's")
def test_as_pid_1_no_zombie_is_left() -> None:
    """A gateway that inherits its engines' orphans takes them off the process table."""
    done = subprocess.run(
        [sys.executable, "-c", HOST, *STUBBORN_FAMILY],
        input="close\n",
        text=True,
        capture_output=True,
        cwd=ROOT,
        timeout=60,
    )
    assert done.stderr == ""
    assert done.stdout.splitlines()[1:] == ["no children"]


def test_a_gateway_that_is_killed_ends_its_engines_by_eof() -> None:
    """SIGKILL leaves us no time, but the engine's stdin ends, and that is its sign to go."""
    command = ["sh", "-c", "echo $$ >&2; cat >/dev/null"]
    with subprocess.Popen(
        [sys.executable, "-c", HOST, *command], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT
    ) as host:
        assert host.stdout is not None
        engine = int(host.stdout.readline())
        assert not process_gone(engine)
        host.kill()
        host.wait(PATIENCE)
    asyncio.run(until(lambda: process_gone(engine)))


@on_both_loops
async def test_pipes_are_pipes() -> None:
    """A shell may reopen its standard streams by name, as engines' wrappers do."""
    async with opened(["sh", "-c", f"echo hello > /dev/stderr; exec {' '.join(peer())}"]) as transport:
        await ask(transport)
        assert transport.stderr_tail == "hello\n"


@on_both_loops
async def test_without_pidfds_the_end_is_seen_all_the_same() -> None:
    """On systems that lack them, a thread waits for the process."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delattr(os, "pidfd_open", raising=False)
        async with opened() as transport:
            await ask(transport)
            assert "exited with status 6" in (await failure(transport, ["exit", 6])).message


async def test_a_call_that_meets_a_dying_process_hears_why(monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the first sign of the end and the end itself, a call waits for the reason instead of guessing."""
    monkeypatch.setattr("app.engines.child_process.DRAIN_SECONDS", 2.0)
    async with opened() as transport:
        await ask(transport)
        first = asyncio.ensure_future(failure(transport, ["close", 1], ["hold"]))
        await until(lambda: "ending" in repr(transport))
        fault = await failure(transport, idempotent=False)
        assert isinstance(fault, ConnectFailed)
        assert "closed its pipes and was killed" in fault.message
        assert (await first).message == fault.message
