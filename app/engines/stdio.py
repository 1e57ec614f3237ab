"""RCP over a child process (RCP §5 stdio): calls are multiplexed by id over newline-delimited JSON.

Matches lines to calls, starts the process again after it has ended, and fails the calls that were waiting.
"""

import asyncio
import itertools
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from app.engines.child_output import HEAD_BYTES, TAIL_BYTES, OversizedLine, StderrTail, number_in_head, number_in_tail
from app.engines.child_process import ChildProcess, Line
from app.engines.transport import Reply, result_of
from app.protocol.envelope import encode_call, encode_notification, loads_answer
from app.protocol.errors import (
    ConnectFailed,
    LegError,
    ParseError,
    PayloadTooLarge,
    ProtocolViolation,
    ResponseTooLarge,
)
from app.resilience.byte_budget import hold
from app.settings.schema import EngineEntry, EnginesSettings

HEALTHY_SECONDS: Final = 30.0
"""A process that has answered and ran for this long is healthy: the pause after its end is the shortest again."""

START_SECONDS: Final = 120.0
"""A process that has not answered yet may be loading its index: it counts as hung only after this time."""

PROBES: Final = frozenset({"initialize", "info", "ping"})
"""Methods whose answers do not prove that the engine can serve."""

BOM: Final = b"\xef\xbb\xbf"
OPENING_BRACE: Final = 0x7B


@dataclass(slots=True)
class Backoff:
    """The pause before a process is started again, in seconds: `first`, doubled each time.

    Up to `longest` for a process that served calls before it ended, else (it only crashes) up to `longest_idle`.
    """

    first: float = 0.1
    longest: float = 5.0
    longest_idle: float = 300.0
    pause: float = 0.0
    exits: int = 0
    """In a row, without a healthy process in between."""

    def next_pause(self, served: bool = False) -> float:
        """Count one more exit and return the pause that is due."""
        self.exits += 1
        self.pause = min(self.pause * 2 or self.first, self.longest if served else self.longest_idle)
        return self.pause

    def reset(self) -> None:
        """The process is healthy: the next pause is the first again."""
        self.pause = 0.0
        self.exits = 0


@dataclass(frozen=True, slots=True)
class LineReceived:
    """The outcome of a call: the message that answers it, and the bytes of its line."""

    message: dict[str, Any]
    size: int


@dataclass(frozen=True, slots=True)
class ProcessExited:
    """The outcome of a call whose process has ended."""

    exit_reason: str
    sent: bool
    answered: bool
    """Whether the process had ever answered anything."""


class StdioTransport:
    """One engine as a child process. Satisfies `Transport`.

    The first call (in the gateway the handshake) or `start` starts it; after its end, the first call once the pause is
    over. `generation` counts the started processes. A new process refuses calls until the engine above has performed a
    handshake.

    `log` gets each line of stderr (at most 20 a second; the gateway's own remarks in brackets). `ended` is called for
    each unexpected end (how, seconds until the next start, how many in a row). `clock` gives monotonic seconds, and
    `grace` is how many seconds `close` waits for the process after EOF, and again after SIGTERM.
    """

    def __init__(
        self,
        entry: EngineEntry,
        settings: EnginesSettings,
        *,
        log: Callable[[str], None] | None = None,
        ended: Callable[[str, float, int], None] = lambda how, seconds, times: None,
        clock: Callable[[], float] = time.monotonic,
        backoff: Backoff | None = None,
        grace: float = 1.0,
    ) -> None:
        assert entry.command is not None
        self.generation = 0
        self.stdout_noise = 0
        """Lines on stdout that were no answer: banners, log lines, notifications. Blank lines are not counted."""
        self.unknown_answers = 0
        """Answers to no call in flight: late ones of cancelled calls, second ones, made-up ids."""
        self._command = tuple(entry.command)
        self._limit = settings.max_response_bytes
        self._log = log
        self._clock = clock
        self._ended = ended
        self._backoff = backoff or Backoff(
            longest=settings.reconnect_max_seconds, longest_idle=settings.stdio_restart_max_seconds
        )
        self._grace = grace
        self._numbers = itertools.count(1)
        self._sent = 0
        """The number of the last call."""
        self._in_flight: dict[int, asyncio.Future[Any]] = {}
        self._probes: set[int] = set()
        self._started_at = 0.0
        self._most_unanswered = settings.stdio_unanswered
        self._unanswered = 0
        """Silences in a row: calls that were not answered in time, of those under way together only one."""
        self._abandoned = 0
        self._silent_since = 0
        """Calls up to this number were under way in a silence that counts already."""
        self._child: ChildProcess | None = None
        self._stderr = StderrTail(log, clock)
        self._starting: asyncio.Task[None] | None = None
        self._ending: asyncio.Task[None] | None = None
        self._fault = "the engine's process was never started"
        self._retry_at = float("-inf")
        self._closed = False

    @property
    def stderr_tail(self) -> str:
        """The last 8 KB that the present or last process wrote to stderr, for operators.

        Every line goes to `log`, and the last one once more when the process dies; callers see none of it.
        """
        return self._stderr.text

    async def start(self) -> None:
        """Start the process before the first call; the gateway itself never needs that.

        Raises ConnectFailed, also while it is down and its pause is not over.
        """
        if self._child is None or self._child.gone:
            await self._running()

    async def call(self, method: str, params: Mapping[str, Any], *, idempotent: bool = True) -> Reply:
        """Send one request and wait for its answer, in whatever order answers come. Raises LegError.

        A process that dies before it ever answered fails its calls with ConnectFailed, unless the request is not
        idempotent and was sent. Nothing is ever sent twice.
        """
        child = self._child
        if child is None or child.gone:
            child = await self._running()
        number = self._sent = next(self._numbers)
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        # Registered after sending: `send` raises Overloaded if too much waits already.
        child.send(number, encode_call(number, method, params) + b"\n")
        self._in_flight[number] = answer
        if method in PROBES:
            self._probes.add(number)
        try:
            outcome = await answer
        except asyncio.CancelledError:
            self._abandon(child, number)
            raise
        finally:
            self._probes.discard(number)
        if type(outcome) is LineReceived:
            hold(outcome.size)
            return Reply(result_of(outcome.message, number), size=outcome.size)
        if type(outcome) is ProcessExited:
            # A process that has never answered was probably never able to: a connect error is retried safely.
            never_there = not outcome.sent or (idempotent and not outcome.answered)
            raise (ConnectFailed if never_there else ProtocolViolation)(outcome.exit_reason)
        raise outcome

    def send(self, method: str, params: Mapping[str, Any]) -> None:
        """Never: use `call`. A call that is given up has to notify the process, which needs its task."""

    def renew(self) -> None:
        """Nothing to do: a process has no address."""

    def overdue(self) -> None:
        """The call given up last was not answered in time. After too many in a row, the process is killed: nobody else
        can restart it."""
        child = self._child
        if not self._most_unanswered or child is None or child.gone or self._abandoned <= self._silent_since:
            return
        self._silent_since = self._sent
        self._unanswered += 1
        # Loading an index can take minutes; killing it then would never let it start.
        loading = not child.answered and self._clock() < self._started_at + START_SECONDS
        if self._unanswered >= self._most_unanswered and not loading:
            child.kill(f"left {self._unanswered} calls in a row unanswered and was killed")

    async def close(self) -> None:
        """End the process and everything it started: EOF, SIGTERM, SIGKILL. Calls under way end with ConnectFailed."""
        self._closed = True
        for number in tuple(self._in_flight):
            self._finish(number, ConnectFailed("closed"))
        # A process that is being started has to be ended as well.
        if self._starting is not None:
            await asyncio.wait([self._starting])
        if self._ending is not None:
            await asyncio.wait([self._ending])
        elif self._child is not None:
            await self._child.end(self._grace)

    # -- the life of the process

    async def _running(self) -> ChildProcess:
        """The started process. Calls that need it at the same time wait for one start."""
        if self._starting is None:
            self._refuse_while_down()
            self._starting = asyncio.create_task(self._start_process(), name="stdio-start")
        await asyncio.shield(self._starting)
        if self._closed or self._child is None or self._child.gone:
            self._refuse_while_down()
            raise ConnectFailed(self._fault)
        return self._child

    def _refuse_while_down(self) -> None:
        if self._closed:
            raise ConnectFailed("closed")
        remaining = self._retry_at - self._clock()
        if remaining > 0:
            raise ConnectFailed(f"started again in {remaining:.1f} s: {self._fault}")

    async def _start_process(self) -> None:
        """Start the process. An error is kept in `_fault` for all waiting calls."""
        try:
            if self._ending is not None:
                await self._ending
            self._ending = self._child = None
            self._stderr = StderrTail(self._log, self._clock)
            child = ChildProcess(self._limit, self._stderr, self._on_lines, self._on_exit)
            await child.start(self._command)
        except (OSError, ValueError) as fault:
            reason = fault.strerror if isinstance(fault, OSError) and fault.strerror else str(fault)
            words = f"cannot start {self._command[0]!r}: {reason}"
            self._count_as_down(words, words, served=False)
        else:
            self._child = child
            self._started_at = self._clock()
            self._unanswered = 0
            self.generation += 1
        finally:
            self._starting = None

    def _on_exit(self, child: ChildProcess) -> None:
        """Called when the process has ended by itself: fail the waiting calls, and clean up its group."""
        # A process that crashes soon after its start must not reset the pause.
        if child.answered and self._clock() >= self._started_at + HEALTHY_SECONDS:
            self._backoff.reset()
        self._count_as_down(child.exit_reason, child.exit_summary, served=child.served)
        for number in tuple(self._in_flight):
            self._finish(number, ProcessExited(child.exit_reason, not child.withdraw(number), child.answered))
        self._ending = asyncio.create_task(child.end(0), name="stdio-end")

    def _count_as_down(self, fault: str, remark: str, *, served: bool) -> None:
        self._fault = fault
        pause = self._backoff.next_pause(served)
        self._retry_at = self._clock() + pause
        self._log_remark(remark)
        self._ended(fault, pause, self._backoff.exits)

    # -- answers

    def _on_lines(self, lines: list[Line]) -> None:
        idle = size = 0
        for line in lines:
            if isinstance(line, OversizedLine):
                self._on_oversized(line)
            elif line[:1] == b"{":
                self._on_object(line)
            else:
                # Some runtimes write a byte order mark or spaces before the first line.
                text = line.removeprefix(BOM).strip()
                if text and text[0] == OPENING_BRACE:
                    self._on_object(text)
                else:
                    idle += 1
                    size += len(line) + 1
                    self.stdout_noise += bool(text)
        if idle and self._child is not None:
            self._child.noise.add(size, idle)

    def _count_noise(self, size: int) -> None:
        self.stdout_noise += 1
        if self._child is not None:
            self._child.noise.add(size, 1)

    def _on_object(self, line: bytes | bytearray) -> None:
        try:
            message = loads_answer(line)
        except ParseError as fault:
            self._on_unreadable(line, ProtocolViolation(fault.message))
            return
        except PayloadTooLarge as fault:
            self._on_unreadable(line, ResponseTooLarge(fault.message))
            return
        if not _is_answer(message):
            self._count_noise(len(line))
            return
        self._unanswered = 0
        number = _number_of(message, self._in_flight)
        if number is None or not self._finish(number, LineReceived(message, len(line))):
            self._count_unknown(message.get("id"), len(line))
        elif self._child is not None:
            self._child.noise.reset()
            self._child.answered = True
            if number not in self._probes:
                self._child.served = True

    def _on_unreadable(self, line: bytes | bytearray, fault: LegError) -> None:
        """Fail the call of a line that is not JSON (NaN, an appended log line), if its id can be made out."""
        number = number_in_head(bytes(line[:HEAD_BYTES]))
        if number is None:
            number = number_in_tail(bytes(line[-TAIL_BYTES:]))
        # A line that was cut off by the end of the process: its exit status says more.
        torn = self._child is not None and self._child.ending  # its exit status says more
        if torn or number is None or not self._finish(number, fault):
            self._count_noise(len(line))

    def _on_oversized(self, line: OversizedLine) -> None:
        # The id may be lost in an oversized line; with one call in flight it is known all the same.
        number = line.number
        if number is None and len(self._in_flight) == 1:
            number = next(iter(self._in_flight))
        too_large = ResponseTooLarge(f"the answer is longer than {self._limit} bytes")
        if number is None or not self._finish(number, too_large):
            self._count_noise(0)

    def _finish(self, number: int, outcome: LineReceived | ProcessExited | LegError) -> bool:
        """Pass `outcome` to the call that waits for it, as a value: asyncio logs exceptions that nobody retrieves."""
        answer = self._in_flight.pop(number, None)
        if answer is None:
            return False
        if not answer.done():
            answer.set_result(outcome)
        return True

    def _abandon(self, child: ChildProcess, number: int) -> None:
        if self._in_flight.pop(number, None) is None:
            return
        if child is self._child:
            self._abandoned = number
        # The process has read the request: tell it that nobody waits for the answer (RCP §10).
        if not child.withdraw(number):
            child.offer(encode_notification("notifications/cancel", {"id": number}) + b"\n")

    def _count_unknown(self, answered: Any, size: int) -> None:
        self.unknown_answers += 1
        if self._child is not None:
            self._child.noise.add(size, 1)
        # Logged once per process object: an engine may send one for every call.
        if self.unknown_answers == 1:
            self._log_remark(f"an answer to no call in flight, id {answered!r}; further ones are only counted")

    def _log_remark(self, text: str) -> None:
        if self._log is not None:
            self._log(f"[{text}]")

    def __repr__(self) -> str:
        if self._closed:
            state = "closed"
        elif self._child is None or self._child.gone:
            state = f"down ({self._fault}; started again in {max(0.0, self._retry_at - self._clock()):.1f} s)"
        else:
            state = repr(self._child)
        counts = f"{len(self._in_flight)} in flight, noise {self.stdout_noise}, unknown answers {self.unknown_answers}"
        return f"<StdioTransport {self._command[0]} {state}, generation {self.generation}, {counts}>"


def _is_answer(message: dict[str, Any]) -> bool:
    """Whether it is meant as a response: a structured log line on stdout may well carry an `id` of its own."""
    if type(message.get("result")) is dict or type(message.get("error")) is dict:
        return True
    return "jsonrpc" in message and "method" not in message


def _number_of(message: dict[str, Any], in_flight: Mapping[int, object]) -> int | None:
    """The call that `message` answers. A string of our number is accepted, as numbers are ours and unique.

    An error with `id: null` is about a request the engine could not read: it is the only one in flight, or nobody's.
    """
    answered = message.get("id")
    if type(answered) is int:
        return answered
    if type(answered) is str:
        return int(answered) if answered.isascii() and answered.isdecimal() and len(answered) < 20 else None
    if type(answered) is float:
        return int(answered) if answered.is_integer() else None
    if answered is None and len(in_flight) == 1 and type(message.get("error")) is dict:
        return next(iter(in_flight))
    return None
