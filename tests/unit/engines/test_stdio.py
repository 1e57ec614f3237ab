"""Calls over a child process: which line answers which call, what is noise, what is too much, what a cancel leaves."""

import asyncio
import os
import signal

import pytest

from app.protocol.errors import LegRateLimited, Overloaded, ProtocolViolation, Refused, ResponseTooLarge
from tests.support.running_gateway import until
from tests.support.stdio_engine import ask, on_both_loops, opened

ANSWER = '{"jsonrpc":"2.0","id":{id},"result":{"n":1}}'


@on_both_loops
async def test_a_call_is_answered() -> None:
    """Method and params arrive, the result comes back, one request was needed."""
    async with opened() as transport:
        reply = await transport.call("retrieve", {"echo": "søk\u2028\n"})
    assert reply.result["method"] == "retrieve"
    assert reply.result["echo"] == "søk\u2028\n"
    assert reply.attempts == 1


@on_both_loops
async def test_answers_in_any_order_find_their_calls() -> None:
    """Calls held back by the engine and answered last first each get their own answer."""
    async with opened() as transport:
        held = [asyncio.ensure_future(ask(transport, ["hold"], echo=n)) for n in range(20)]
        await until(lambda: "20 in flight" in repr(transport))
        last = await ask(transport, ["ok"], ["release"], echo="last")
        assert [result["echo"] for result in await asyncio.gather(*held)] == list(range(20))
    assert last["echo"] == "last"
    assert transport.generation == 1


async def test_an_id_that_comes_back_as_a_string_or_a_float_is_accepted() -> None:
    """Our request 7 may be answered as "7" or 7.0."""
    async with opened() as transport:
        assert await ask(transport, ["say", '{"jsonrpc":"2.0","id":"{id}","result":{"n":1}}']) == {"n": 1}
        assert await ask(transport, ["say", '{"jsonrpc":"2.0","id":{id}.0,"result":{"n":1}}']) == {"n": 1}
        assert transport.unknown_answers == 0


@pytest.mark.parametrize("stray", ["99", '"x"', "true", "1.5", "null", "[]", '"99999999999999999999999"', '"١"'])
async def test_answers_to_nobody_are_counted_and_ignored(stray: str) -> None:
    """An id that is not in flight, of whatever type, disturbs nobody and is remarked once."""
    log: list[str] = []
    async with opened(log=log.append) as transport:
        line = ANSWER.replace("{id}", stray)
        assert (await ask(transport, ["say", line], ["say", line], ["ok"], echo=1))["echo"] == 1
        assert transport.unknown_answers == 2
    assert len([remark for remark in log if "no call in flight" in remark]) == 1


async def test_a_second_answer_is_ignored() -> None:
    """Only the first answer counts; the next call is not touched."""
    async with opened() as transport:
        assert await ask(transport, ["say", ANSWER], ["say", ANSWER.replace('"n":1', '"n":2')]) == {"n": 1}
        assert (await ask(transport, echo="next"))["echo"] == "next"
        assert transport.unknown_answers == 1


@on_both_loops
async def test_noise_on_stdout_is_counted_and_ignored() -> None:
    """Blank lines, a banner, 36 log lines, then the answer: answered, 37 lines of noise."""
    async with opened() as transport:
        lines = "\n\r\n   \nWelcome to the engine!\n" + "".join(f"INFO loading shard {n}\n" for n in range(36))
        assert (await ask(transport, ["write", lines], ["ok"], echo="here"))["echo"] == "here"
        assert transport.stdout_noise == 37


@pytest.mark.parametrize(
    "line",
    [
        '{"jsonrpc":"2.0","method":"notifications/progress","params":{"progress":0.5}}',
        '{"jsonrpc":"2.0","id":{id},"method":"sampling/create","params":{}}',
        '{"level":"info","id":{id},"msg":"structured log"}',
        '{"level":"error","id":{id},"error":"in a log line"}',
        '[{"jsonrpc":"2.0","id":{id},"result":{}}]',
        '{"half": ',
        "3",
        'INFO request done {"jsonrpc":"2.0","id":{id},"result":{}}',
    ],
)
async def test_json_that_is_no_response_is_noise(line: str) -> None:
    """Notifications, requests, structured log lines and text glued in front of JSON answer nothing."""
    async with opened() as transport:
        assert (await ask(transport, ["say", line], ["ok"], echo=2))["echo"] == 2
        assert transport.stdout_noise == 1


async def test_a_byte_order_mark_at_the_start_is_tolerated() -> None:
    """A peer that opens its stdout with a BOM is understood."""
    async with opened() as transport:
        assert await ask(transport, ["say", "\ufeff" + ANSWER]) == {"n": 1}
        assert transport.stdout_noise == 0


async def test_line_separators_inside_strings_do_not_split_a_message() -> None:
    """U+2028 and U+0085 unescaped inside a string are content."""
    async with opened() as transport:
        text = "a\u2028b\u0085c"
        assert await ask(transport, ["say", ANSWER.replace("1}}", f'"{text}"}}}}')]) == {"n": text}


@on_both_loops
async def test_a_line_of_five_megabytes_is_delivered() -> None:
    """One long line is one answer."""
    async with opened() as transport:
        steps = [["write", '{"jsonrpc":"2.0","id":{id},"result":{"text":"'], ["write", "x", 5_000_000], ["say", '"}}']]
        assert len((await ask(transport, *steps))["text"]) == 5_000_000


@on_both_loops
async def test_an_answer_above_the_limit_fails_its_call_alone() -> None:
    """The call with the long line fails, others in flight and the next one on the same process succeed."""
    async with opened(limit=100_000) as transport:
        held = asyncio.ensure_future(ask(transport, ["hold"], echo="held"))
        await until(lambda: "1 in flight" in repr(transport))
        start = ["write", '{"jsonrpc":"2.0","id":{id},"result":{"text":"']
        with pytest.raises(ResponseTooLarge, match="100000 bytes"):
            await ask(transport, start, ["write", "x", 300_000])
        assert (await ask(transport, ["say", '"}}'], ["ok"], ["release"], echo="next"))["echo"] == "next"
        assert (await held)["echo"] == "held"
    assert transport.generation == 1


@pytest.mark.parametrize("end", ['"},"id":{id}}', '"}}'])
async def test_an_answer_above_the_limit_without_its_id_in_front_fails_its_call(end: str) -> None:
    """The id is found at the end of the line; without one, the only call in flight is meant."""
    async with opened(limit=2000) as transport:
        with pytest.raises(ResponseTooLarge):
            await ask(transport, ["write", '{"result":{"text":"'], ["write", "x", 5000], ["say", end])
        assert (await ask(transport, echo="next"))["echo"] == "next"


async def test_a_notification_above_the_limit_fails_nobody() -> None:
    """A long progress line is noise even when one call is in flight."""
    async with opened(limit=2000) as transport:
        start = '{"jsonrpc":"2.0","method":"notifications/progress","params":{"text":"'
        assert await ask(transport, ["write", start], ["write", "x", 5000], ["say", '"}}'], ["ok"])
        assert transport.stdout_noise == 1


@pytest.mark.parametrize("spoilt", ['{"jsonrpc":"2.0","id":{id},"result":{"score":nan}}', ANSWER + " INFO done"])
async def test_spoilt_json_fails_its_call_at_once(spoilt: str) -> None:
    """What no parser reads, or a log line glued to the end of an answer, is a protocol fault of that one call."""
    async with opened() as transport:
        with pytest.raises(ProtocolViolation, match="not JSON"):
            await ask(transport, ["say", spoilt])
        assert (await ask(transport, echo="next"))["echo"] == "next"


async def test_answer_that_is_almost_json_is_repaired() -> None:
    """NaN and half of a surrogate pair cost their value, not the answer."""
    async with opened() as transport:
        said = await ask(
            transport, ["say", '{"jsonrpc":"2.0","id":{id},"result":{"score":NaN,"text":"a\\ud800","k":1}}']
        )
    assert said == {
        "text": "a\ufffd",
        "k": 1,
        "usage": {
            "notes": [
                "the answer was not sound JSON: 1 number(s) that JSON cannot say left out, "
                "1 text(s) with broken characters replaced"
            ]
        },
    }


async def test_errors_of_the_engine_keep_code_and_message() -> None:
    """A JSON-RPC error becomes the LegError of its code; with `id: null` it belongs to the only call in flight."""
    async with opened() as transport:
        with pytest.raises(Refused, match="-32602 no such field"):
            await ask(
                transport, ["say", '{"jsonrpc":"2.0","id":{id},"error":{"code":-32602,"message":"no such field"}}']
            )
        limited = '{"jsonrpc":"2.0","id":null,"error":{"code":-32011,"message":"slow","data":{"retryAfterMs":5}}}'
        with pytest.raises(LegRateLimited) as caught:
            await ask(transport, ["say", limited])
        assert caught.value.retry_after_ms == 5
        with pytest.raises(ProtocolViolation, match="neither a result object nor an error"):
            await ask(transport, ["say", '{"jsonrpc":"2.0","id":{id},"result":[]}'])


@on_both_loops
async def test_a_cancelled_call_is_gone_and_its_late_answer_ignored() -> None:
    """The engine is told with notifications/cancel, and what it answers all the same hurts nobody."""
    async with opened() as transport:
        call = asyncio.ensure_future(ask(transport, ["hold"]))
        await until(lambda: "1 in flight" in repr(transport))
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        assert "0 in flight" in repr(transport)
        result = await ask(transport, ["release"], ["inbox"])
        assert result["inbox"] == [{"jsonrpc": "2.0", "method": "notifications/cancel", "params": {"id": 1}}]
        assert transport.unknown_answers == 1


@on_both_loops
async def test_an_engine_that_does_not_read_gets_whole_lines_or_none() -> None:
    """Calls wait for a stopped engine; those cancelled meanwhile never reach it, the others arrive untorn, in order."""
    async with opened() as transport:
        pid = (await ask(transport))["pid"]
        os.kill(pid, signal.SIGSTOP)
        text = "x" * 100_000
        calls = [asyncio.ensure_future(ask(transport, echo=f"{n}{text}")) for n in range(30)]
        await until(lambda: "30 in flight" in repr(transport))
        assert "lines wait for its stdin" in repr(transport)
        for call in calls[1::2]:
            call.cancel()
        os.kill(pid, signal.SIGCONT)
        kept = await asyncio.gather(*calls[::2])
        assert [result["echo"] for result in kept] == [f"{n}{text}" for n in range(0, 30, 2)]
        assert (await ask(transport, ["inbox"]))["inbox"] == []


@on_both_loops
async def test_too_much_for_an_engine_that_does_not_read_is_refused() -> None:
    """Past a few megabytes of waiting requests a call fails as overloaded, and nothing of it is kept."""
    async with opened() as transport:
        pid = (await ask(transport))["pid"]
        os.kill(pid, signal.SIGSTOP)
        text = "x" * 1_000_000
        calls = [asyncio.ensure_future(transport.call("retrieve", {"echo": text})) for _ in range(12)]
        await asyncio.wait(calls, return_when=asyncio.FIRST_COMPLETED, timeout=60)
        refused = [call.exception() for call in calls if call.done()]
        assert 0 < len(refused) < 10
        assert all(isinstance(fault, Overloaded) for fault in refused)
        os.kill(pid, signal.SIGCONT)
        answered = [
            reply.result["echo"]
            for reply in await asyncio.gather(*calls, return_exceptions=True)
            if not isinstance(reply, BaseException)
        ]
        assert answered == [text] * (12 - len(refused))


@on_both_loops
async def test_a_output_limit_on_stderr_blocks_nobody() -> None:
    """256 KB on stderr without a newline before the answer: answered, the last 8 KB kept, the log limited."""
    log: list[str] = []
    async with opened(log=log.append) as transport:
        assert await ask(transport, ["stderr", "x", 262_144], ["ok"])
        await until(lambda: len(transport.stderr_tail) == 8192)
        assert await ask(transport, ["stderr", "\nlast\n"], ["stderr", "y\n", 1000], ["ok"])
        await until(lambda: transport.stderr_tail.endswith("y\n") and "last" not in transport.stderr_tail[-1990:])
    assert len(log[0]) == 1000
    assert len([line for line in log if line == "y"]) <= 20
    assert any("lines dropped]" in line for line in log)


@on_both_loops
async def test_thousands_of_cancellations_leave_no_trace() -> None:
    """After 3,600 cancelled calls nothing is in flight, and ten good calls are answered by the same process."""
    async with opened() as transport:
        for _ in range(36):
            calls = [asyncio.ensure_future(transport.call("retrieve", {"do": [["hold"]]})) for _ in range(100)]
            await asyncio.sleep(0)
            for call in calls:
                call.cancel()
            await asyncio.wait(calls)
        assert "0 in flight" in repr(transport)
        results = await asyncio.gather(*(ask(transport, echo=n) for n in range(10)))
        assert [result["echo"] for result in results] == list(range(10))
        assert transport.generation == 1
