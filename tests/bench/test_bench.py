"""The bench measures what it says: stubs answer RCP, the floor fuses, the load counts faults, no child outlives it."""

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from math import inf
from pathlib import Path
from typing import Any, cast

import pytest

from app.protocol.advertisement import read_advertisement
from bench import rig
from bench.compare import Comparison, Reading, Shape, arguments, turns, within
from bench.floor import fuse
from bench.load import Crew, Tally, drive
from bench.memory import Sample, growth, report
from bench.stub_engine import Shape as Answers
from bench.stub_engine import StubConnection, StubEngine

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the bench reads CPU time from a Linux kernel")


class Sink:
    """The writing end of a transport: keeps what was written."""

    def __init__(self) -> None:
        self.written = b""

    def write(self, data: bytes) -> None:
        self.written += data


def ask(engine: StubEngine, method: str, params: dict[str, Any], identity: Any = 1) -> dict[str, Any]:
    """One question put to a stub, as its parsed JSON-RPC answer."""
    body = json.dumps({"jsonrpc": "2.0", "id": identity, "method": method, "params": params}).encode()
    head, _, answer = engine.answer(body).partition(b"\r\n\r\n")
    assert f"Content-Length: {len(answer)}".encode() in head
    message: dict[str, Any] = json.loads(answer)
    return message


def alive(pid: int) -> bool:
    """Whether a process of that id still runs (a zombie does not)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def children_of(parent: int) -> list[int]:
    """The ids of the processes that `parent` started."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if int(fields[1]) == parent:
                found.append(int(entry.name))
    return found


def eventually(condition: Callable[[], bool], limit: float = 60.0) -> bool:
    """Whether `condition` came true within `limit` seconds."""
    until = time.monotonic() + limit
    while not condition():
        if time.monotonic() > until:
            return False
        time.sleep(0.02)
    return True


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the children of this module log."""
    return tmp_path_factory.mktemp("bench")


@pytest.fixture(scope="module")
def engines(workspace: Path) -> Iterator[list[str]]:
    """Three stub engines in a process of their own."""
    with rig.stubs(["--engines", "3"], workspace) as child:
        yield child.urls


def test_stub_passes_the_handshake() -> None:
    """A stub's advertisement is one that the gateway reads as a retrieving engine with confidences."""
    advertisement = read_advertisement(ask(StubEngine(0, Answers()), "initialize", {"protocolVersion": 1})["result"])
    assert advertisement.retrieve is not None
    assert (advertisement.retrieve.max_k, advertisement.retrieve.confidence) == (200, True)
    assert advertisement.retrieve.modes == {"dense", "sparse", "hybrid"}
    assert advertisement.offers("citations")


@pytest.mark.parametrize("identity", [7, "7", 'a "quoted" \u00e9', 1.5])
def test_stub_echoes_the_id(identity: Any) -> None:
    """The id comes back with its type and value."""
    answer = ask(StubEngine(0, Answers()), "retrieve", {"query": '{"id":99}', "k": 10}, identity)
    assert answer["id"] == identity
    assert type(answer["id"]) is type(identity)


def test_stub_hits_are_what_the_bench_promises() -> None:
    """As many hits as asked for, cited, with meta; a third of the documents is shared, with own texts."""
    lists = [ask(StubEngine(number, Answers()), "retrieve", {"k": 20})["result"]["hits"] for number in range(8)]
    for hits in lists:
        assert [len(hit["text"].encode()) for hit in hits] == [300] * 20
        assert all("uri" in hit["citation"] and hit["meta"] for hit in hits)
        for key in ("score", "confidence"):
            assert [hit[key] for hit in hits] == sorted((hit[key] for hit in hits), reverse=True)
    seen = Counter(hit["id"] for hits in lists for hit in hits)
    assert Counter(seen.values())[8] >= 6
    assert len({hit["text"] for hits in lists for hit in hits}) == 8 * 20


def test_stub_answers_say_when_they_were_written() -> None:
    """Real servers send `Date`."""
    body = b'{"jsonrpc":"2.0","id":1,"method":"ping","params":{}}'
    assert b"\r\nDate: " in StubEngine(0, Answers()).answer(body)


def test_stub_options_shape_its_answers() -> None:
    """Shorter text, no confidence and the caller's k are honoured."""
    hits = ask(StubEngine(1, Answers(text_bytes=40, confidence="none")), "retrieve", {"k": 3})["result"]["hits"]
    assert len(hits) == 3
    assert all(len(hit["text"]) == 40 and "confidence" not in hit for hit in hits)
    ragged = ask(StubEngine(1, Answers(confidence="ragged")), "retrieve", {})["result"]["hits"]
    confidences = [hit["confidence"] for hit in ragged]
    assert confidences != sorted(confidences, reverse=True)
    assert all(0 <= value <= 1 for value in confidences)


def test_stub_answers_the_other_methods() -> None:
    """ping echoes its nonce, a notification gets 204 and no body, an unknown method -32004."""
    engine = StubEngine(0, Answers())
    assert ask(engine, "ping", {"nonce": "n"})["result"] == {"nonce": "n"}
    assert engine.answer(b'{"jsonrpc":"2.0","method":"notifications/x"}').startswith(b"HTTP/1.1 204")
    assert ask(engine, "rerank", {})["error"]["code"] == -32004
    assert "asked=2" in repr(engine)


def test_stub_reads_requests_cut_anywhere() -> None:
    """Two requests that arrive byte by byte are answered as two that arrive in one piece."""
    body = b'{"jsonrpc":"2.0","id":1,"method":"ping","params":{}}'
    requests = 2 * (b"POST /rcp/ping HTTP/1.1\r\ncontent-length: %d\r\n\r\n" % len(body) + body)
    answers = []
    for size in (1, 7, len(requests)):
        connection, log_writer = StubConnection(StubEngine(0, Answers())), Sink()
        connection.connection_made(cast(asyncio.Transport, log_writer))
        for start in range(0, len(requests), size):
            connection.data_received(requests[start : start + size])
        answers.append(log_writer.written)
    assert answers[0].count(b'"result"') == 2
    assert len(set(answers)) == 1


def test_floor_fuses_by_plain_rrf() -> None:
    """A document of two engines sums its reciprocal ranks and comes first; the list is cut to k."""
    lists = [["a", "b"], ["b", "c"]]
    answers = [{"result": {"hits": [{"id": document} for document in ranked]}} for ranked in lists]
    assert fuse(answers, 2) == [{"id": "b", "score": 1 / 61 + 1 / 62}, {"id": "a", "score": 1 / 61}]


async def test_floor_answers_every_caller(engines: list[str], workspace: Path) -> None:
    """The floor serves a whole load without a fault, and its CPU clock moves."""
    with rig.floor(engines, workspace) as floor:
        before = floor.cpu_ns()
        tally = await drive(floor.urls[0], requests=60, callers=4, k=10)
        assert (tally.answered, tally.faults) == (60, Counter())
        assert floor.cpu_ns() > before
        assert floor.rss_bytes() > 1_000_000
        assert 0 < tally.percentile_ms(0.5) <= tally.percentile_ms(0.99)
    assert not alive(floor.process.pid)


async def test_load_counts_short_answers(engines: list[str]) -> None:
    """An answer with other than k hits is a fault, and every request is accounted for."""
    tally = await drive(engines[0], requests=20, callers=3, k=201)
    assert tally.faults == {"200 hits": 20}
    assert tally.summary()["errors"] == {"200 hits": 20}


async def test_load_counts_lost_connections() -> None:
    """A peer that hangs up is a fault per caller, and what nobody could ask is counted too."""

    async def hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.close()
        await writer.wait_closed()

    async with await asyncio.start_server(hang_up, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        tally = await drive(f"http://127.0.0.1:{port}/rcp", requests=10, callers=2, k=10)
    assert tally.faults == {"connection lost": 2, "not asked": 8}


async def test_load_ends_when_nobody_answers() -> None:
    """A silent peer ends the run at its limit with every request a fault."""
    released = asyncio.Event()

    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await released.wait()
        writer.close()

    async with await asyncio.start_server(silent, "127.0.0.1", 0) as server:
        crew = Crew(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/rcp", callers=2)
        await crew.connect()
        tally = await crew.run(6, limit=0.05)
        assert "working=2/2" in repr(crew)
        crew.close()
        released.set()
    assert tally.faults == {"no answer in time": 6}


@pytest.mark.parametrize(
    ("message", "fault"),
    [
        ({"id": 5, "error": {"code": -32010}}, "error -32010"),
        ({"id": 6, "result": {"hits": []}}, "another id"),
        ({"id": 5, "result": {"hits": [{}], "_meta": {"degraded": ["stub-1"]}}}, "degraded"),
        ({"id": 5, "result": {"hits": [{}], "_meta": {"degraded": []}}}, None),
    ],
)
def test_load_tells_good_answers_from_others(message: dict[str, Any], fault: str | None) -> None:
    """Errors, foreign ids and answers that lack an engine do not count as work done."""
    crew = Crew("http://127.0.0.1:9/rcp", k=1)
    assert crew.fault_of(b"HTTP/1.1 200", json.dumps(message).encode(), 5) == fault
    assert crew.fault_of(b"HTTP/1.1 503", b"", 5) == "status 503"


def test_turns_make_up_the_round() -> None:
    """A round is cut into ten turns that add up to it."""
    assert turns(2000) == [200] * 10
    assert turns(7) == [1] * 7
    assert sum(turns(1999)) == 1999


def test_a_larger_shape_takes_fewer_requests() -> None:
    """Every shape is about as much work, and enough requests to say something."""
    assert [Shape.of(text).requests(1000) for text in ("8x10", "32x10", "100x100")] == [1000, 250, 32]


def test_comparison_takes_the_median_of_paired_ratios() -> None:
    """The ratio is formed within each round; the median and the spread are reported, faults by target."""
    pairs = [(100.0, 150.0), (200.0, 280.0), (100.0, 190.0)]
    rounds = [{"floor": Reading(low, Tally([0.001])), "gateway": Reading(high, Tally([0.002]))} for low, high in pairs]
    comparison = Comparison(["floor", "gateway"], rounds)
    report = comparison.report()
    assert report["ratio"] == {"gateway": {"median": 1.5, "min": 1.4, "max": 1.9}}
    assert comparison.lines()[-1] == "gateway costs 1.50 times the floor (1.40 to 1.90 over the rounds)"
    assert comparison.faults() == {}
    rounds[0]["gateway"].tally.faults["10 hits"] += 1
    assert comparison.faults() == {"gateway": {"10 hits": 1}}


def test_comparison_fails_on_a_ratio_only_when_asked_to(capsys: pytest.CaptureFixture[str]) -> None:
    """--max-ratio turns the comparison into a gate, on the median."""
    rounds = [{"floor": Reading(100.0, Tally([0.001])), "gateway": Reading(170.0, Tally([0.002]))}]
    comparison = Comparison(["floor", "gateway"], rounds)
    assert within(comparison, inf, "8x10")
    assert within(comparison, 1.7, "8x10")
    assert not within(comparison, 1.6, "8x10")
    assert "8x10: the ratio 1.700 exceeds 1.6" in capsys.readouterr().err


def test_memory_is_judged_by_the_second_half() -> None:
    """Growth in the first half is forgiven, 2 % in the second is not."""
    early = [Sample(0, 100), Sample(50, 200), Sample(100, 203)]
    late = [Sample(0, 100), Sample(50, 200), Sample(100, 204)]
    assert growth(early) == pytest.approx(0.015)
    assert (report(early)["flat"], report(late)["flat"]) == (True, False)


def test_children_are_stopped_when_the_measurement_fails(workspace: Path) -> None:
    """An error inside the block ends the child; its repr told who it was."""
    seen: list[rig.Child] = []

    def fail() -> None:
        with rig.stubs(["--engines", "1"], workspace) as child:
            assert f"pid={child.process.pid}, exit=None" in repr(child)
            seen.append(child)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert not alive(seen[0].process.pid)


def test_a_child_that_dies_is_reported_with_its_log(workspace: Path) -> None:
    """A child that ends before it listens fails the set-up, with what it wrote to stderr."""
    with pytest.raises(rig.RigError, match=r"stubs ended before it listened(.|\n)*--wrong"):
        rig.stubs(["--wrong"], workspace).__enter__()


def run_bench(module: str, *arguments: str) -> dict[str, Any]:
    """A bench as its user starts it, with --json."""
    command = [sys.executable, "-m", module, "--json", *arguments]
    done = subprocess.run(command, cwd=rig.PROJECT, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    outcome: dict[str, Any] = json.loads(done.stdout)
    return outcome


def test_compare_measures_the_gateway_against_the_floor() -> None:
    """A tiny comparison runs end to end: both targets answer everything and a ratio comes out."""
    size = ("--rounds", "2", "--requests", "20", "--callers", "4", "--shapes", "3x10,2x5")
    outcome = run_bench("bench.compare", *size, "--max-ratio", "1000,1000")
    assert set(outcome) == {"3x10", "2x5"}
    for shape in outcome.values():
        assert shape["errors"] == {}
        assert [{"floor", "gateway"} - set(readings) for readings in shape["rounds"]] == [set()] * 2
        assert shape["ratio"]["gateway"]["median"] > 0


def test_compare_measures_another_checkout_too(tmp_path: Path) -> None:
    """With --against, the gateway of another folder takes its turns, and is compared with ours."""
    other = tmp_path / "before"
    shutil.copytree(rig.PROJECT / "app", other / "app")
    load = ("--rounds", "1", "--requests", "20", "--callers", "2", "--shapes", "3x10")
    outcome = run_bench("bench.compare", "--against", str(other), *load)["3x10"]
    assert outcome["errors"] == {}
    assert {"gateway", "before"} <= set(outcome["ratio"])


def test_compare_measures_an_installed_gateway(tmp_path: Path) -> None:
    """With --python, `gateway` is what that interpreter has installed, and the checkout is measured beside it."""
    load = ("--rounds", "1", "--requests", "20", "--callers", "2", "--shapes", "3x10")
    outcome = run_bench("bench.compare", "--python", sys.executable, *load)["3x10"]
    assert outcome["errors"] == {}
    assert set(outcome["ratio"]) == {"gateway", "interpreted"}


def test_a_comparison_with_another_gateway_says_by_how_much() -> None:
    """The line of another gateway says what it costs in terms of ours, by the median of paired ratios."""
    rounds = [
        {name: Reading(cost, Tally([0.001])) for name, cost in {"floor": 100.0, "gateway": ours, "old": theirs}.items()}
        for ours, theirs in [(200.0, 300.0), (200.0, 280.0), (100.0, 160.0)]
    ]
    lines = Comparison(["floor", "gateway", "old"], rounds).lines()
    assert lines[-1] == "old costs 1.50 times the gateway"


@pytest.mark.parametrize(
    ("folders", "complaint"), [(["empty"], "there is no gateway"), (["a/x", "b/x"], "the names of the folders")]
)
def test_folders_to_compare_with_must_hold_gateways(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    folders: list[str],
    complaint: str,
) -> None:
    """A folder without a gateway, or two that would have one name in the table, are refused before anything starts."""
    for folder in ("a/x", "b/x"):
        (tmp_path / folder / "app").mkdir(parents=True)
        (tmp_path / folder / "app/main.py").touch()
    words = [word for folder in folders for word in ("--against", str(tmp_path / folder))]
    monkeypatch.setattr(sys, "argv", ["compare", *words])
    with pytest.raises(SystemExit):
        arguments()
    assert complaint in capsys.readouterr().err


def test_memory_samples_the_gateway() -> None:
    """A tiny run samples the memory before the first request and after every step."""
    command = [sys.executable, "-m", "bench.memory", "--json", "--engines", "3", "--requests", "60", "--step", "20"]
    done = subprocess.run(command, cwd=rig.PROJECT, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode in (0, 1), done.stderr  # so few requests may well not be flat yet
    assert [sample["requests"] for sample in json.loads(done.stdout)["samples"]] == [0, 20, 40, 60]


def test_tables_compare_a_stream_with_the_plain_answer() -> None:
    """A tiny run of one table tells CPU and bytes of both forms."""
    plain, stream = run_bench("bench.tables", "stream", "--rounds", "1", "--scale", "0.1")["stream"]
    assert (plain["form"], stream["form"]) == ("buffered", "stream")
    assert 0 < plain["bytes"] < stream["bytes"]
    assert min(plain["cpuUs"], stream["cpuUs"], stream["ratio"]) > 0


@pytest.mark.parametrize(
    ("number", "status"), [(signal.SIGTERM, 130), (signal.SIGINT, 130), (signal.SIGKILL, -signal.SIGKILL)]
)
def test_an_interrupted_comparison_leaves_no_child(tmp_path: Path, number: signal.Signals, status: int) -> None:
    """SIGTERM, Ctrl-C and even SIGKILL in the middle of a measurement end every process it started."""
    command = [sys.executable, "-m", "bench.compare", "--no-gateway", "--json", "--requests", "200000"]
    places = {**os.environ, "TMPDIR": str(tmp_path)}
    with subprocess.Popen(command, cwd=rig.PROJECT, env=places, stdout=subprocess.DEVNULL) as bench:
        try:
            assert eventually(lambda: len(children_of(bench.pid)) == 2)
            children = children_of(bench.pid)
            assert eventually(lambda: all(rig.cpu_ns_of(pid) > 500_000_000 for pid in children))  # well under way
            bench.send_signal(number)
            assert bench.wait(60) == status
            assert eventually(lambda: not any(alive(pid) for pid in children))
        finally:
            bench.kill()


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["--shapes", "8x0"], "k 1 to 100"),
        (["--shapes", "many"], "--shapes"),
        (["--max-ratio", "1,2"], "one bound, or one for each shape"),
        (["--max-ratio", "low"], "--max-ratio"),
    ],
)
def test_what_cannot_be_measured_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], words: list[str], complaint: str
) -> None:
    """A wrong option ends the bench with a sentence before anything starts."""
    monkeypatch.setattr(sys, "argv", ["compare", *words])
    with pytest.raises(SystemExit):
        arguments()
    assert complaint in capsys.readouterr().err


def test_help_tells_defaults(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Each option with a value says what it is when it is not given."""
    monkeypatch.setattr(sys, "argv", ["compare", "--help"])
    with pytest.raises(SystemExit):
        arguments()
    told = capsys.readouterr().out
    assert all(f"(default: {value})" in told for value in (6, 1000, 16, 300, "falling"))
