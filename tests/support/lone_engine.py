"""One RemoteEngine on fake wires, and whom it told of changes, of its guards and of its standing."""

import asyncio
from typing import Any

from app.engines.engine import RemoteEngine
from app.engines.in_flight_call import InFlightCall
from app.engines.transport import Reply
from app.protocol.advertisement import Advertisement
from app.protocol.errors import LegError
from app.settings.schema import EnginesSettings
from tests.support.fake_engine import FakeTransport, entry_of


class NotingWitness:
    """Writes down what it is told, a line each."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.waits: list[float] = []

    def first(self) -> None:
        self.lines.append("first")

    def attempted(self, kind: str, count: int = 1) -> None:
        self.lines.extend([kind] * count)

    def retry_skipped(self, reason: str) -> None:
        self.lines.append(f"no retry: {reason}")

    def waited(self, seconds: float) -> None:
        self.waits.append(seconds)

    def breaker(self, state: str, fault: LegError | None = None, seconds: float | None = None) -> None:
        self.lines.append(f"breaker {state}" + ("" if fault is None else f" for {seconds:g} s: {fault.kind}"))

    def replica(self, label: str, fault: LegError | None) -> None:
        self.lines.append(f"replica {label} {'back' if fault is None else fault.kind}")

    def held(self, seconds: float) -> None:
        self.lines.append(f"held {seconds:g} s")

    def advertised(self, before: Advertisement, after: Advertisement) -> None:
        self.lines.append(f"advertises {sorted(after.capabilities)} instead of {sorted(before.capabilities)}")

    def process_ended(self, how: str, seconds: float, times: int) -> None:
        self.lines.append(f"{how}; {times} in a row, again in {seconds:g} s")

    def count(self, line: str) -> int:
        """How often this was told."""
        return self.lines.count(line)


class LoneEngine:
    """A RemoteEngine on a fake wire, and whom it told of changes; `further` are the wires of its other replicas."""

    def __init__(
        self,
        transport: FakeTransport,
        *further: FakeTransport,
        settings: dict[str, Any] | None = None,
        **wishes: Any,
    ) -> None:
        self.transport = transport
        self.changes: list[RemoteEngine] = []
        self.told: list[str] = []
        self.instrumentation = NotingWitness()
        if further:
            wishes["replicas"] = [f"http://docs-{number}.invalid/rcp" for number in range(len(further))]
        self.engine = RemoteEngine(
            entry_of("docs", **wishes),
            transport,
            self.changes.append,
            further=further,
            settings=EnginesSettings.model_validate(settings or {}),
            instrumentation=self.instrumentation,
            on_availability=lambda fault: self.told.append("up" if fault is None else fault.kind),
        )

    async def ask(self, seconds: float = 2.0, **options: Any) -> Reply:
        deadline = asyncio.get_running_loop().time() + seconds
        return await self.engine.call("retrieve", {"query": "q"}, deadline, **options)

    async def fault(self, seconds: float = 2.0, **options: Any) -> LegError:
        """What a call that must fail fails with."""
        try:
            reply = await self.ask(seconds, **options)
        except LegError as fault:
            return fault
        raise AssertionError(f"it was answered: {reply}")

    def start(self, seconds: float = 2.0) -> InFlightCall:
        """Start a call."""
        deadline = asyncio.get_running_loop().time() + seconds
        return self.engine.call("retrieve", {"query": "q"}, deadline)

    def begin(self, seconds: float = 2.0) -> InFlightCall:
        """Start a call whose request must have been written at once."""
        call = self.start(seconds)
        assert call.task is None
        return call

    async def needs_task(self) -> bool:
        """Whether a call started now needs a task; the call is cancelled."""
        call = self.start()
        call.cancel()
        if call.task is not None:
            await asyncio.wait([call.task])
        return call.task is not None

    async def shake(self, seconds: float = 2.0) -> None:
        await self.engine.handshake(asyncio.get_running_loop().time() + seconds)

    async def check(self, seconds: float = 2.0) -> None:
        await self.engine.check(asyncio.get_running_loop().time() + seconds)
