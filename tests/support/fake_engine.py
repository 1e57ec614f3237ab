"""Engines and wires without sockets, and the values that travel (members, calls), for tests of single modules.

A FakeEngine is what the federation sees; a FakeTransport is what lies under a RemoteEngine.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from app.api.methods import OWN_META
from app.engines.in_flight_call import InFlightCall
from app.engines.transport import Exchange, Reply
from app.federation.calls import MethodCall, RetrieveCall
from app.federation.capabilities import EngineOffer, excluded_fields
from app.federation.membership import Members
from app.protocol.advertisement import Advertisement, read_advertisement
from app.protocol.errors import LegError, LegTimeout
from app.protocol.retrieve_params import read_meta, read_retrieve
from app.settings.schema import EngineEntry

Json = dict[str, Any]
Script = Any
"""A result, an exception to raise, a list of such (one per call, the last for ever), or an async function of params."""

CAPABILITIES: Json = {"retrieve": {"maxK": 100, "modes": ["dense", "sparse", "hybrid"], "confidence": True}}


def entry_of(engine_id: str, **wishes: Any) -> EngineEntry:
    """A registry entry; `wishes` are its keys as in the file."""
    return EngineEntry.model_validate({"id": engine_id, "url": f"http://{engine_id}.invalid/rcp", **wishes})


def described(capabilities: Json | None = None, *, gateway_id: str | None = None, name: str = "fake") -> Json:
    """The result of a handshake."""
    result: Json = {
        "protocolVersion": 1,
        "server": {"name": name, "version": "1.0"},
        "capabilities": CAPABILITIES if capabilities is None else capabilities,
    }
    return result if gateway_id is None else {**result, "_meta": {"x-gateway": {"id": gateway_id}}}


def advertised(capabilities: Json | None = None, *, gateway_id: str | None = None) -> Advertisement:
    """The advertisement of an engine with these capabilities."""
    return read_advertisement(described(capabilities, gateway_id=gateway_id))


def hit(hit_id: str | int | float, score: float = 1.0, **more: Any) -> Json:
    """One hit."""
    return {"id": hit_id, "score": score, **more}


def hits(*ids: str | int) -> list[Json]:
    """A ranked list with descending scores."""
    return [hit(hit_id, 1.0 - rank / 100, text=f"text of {hit_id}") for rank, hit_id in enumerate(ids)]


async def never(params: Mapping[str, Any]) -> Any:
    """Never answer."""
    await asyncio.Event().wait()


class _Part:
    """Plays one script, call by call."""

    def __init__(self, script: Script) -> None:
        self._lines = list(script) if isinstance(script, list) else [script]

    async def play(self, params: Mapping[str, Any]) -> Any:
        line = self._lines.pop(0) if len(self._lines) > 1 else self._lines[0]
        if callable(line):
            line = await line(params)
        if isinstance(line, LegError):
            raise _fresh(line)
        if isinstance(line, BaseException):
            raise line
        return line


def _fresh(fault: LegError) -> LegError:
    """The same fault as if it had just happened: whoever passes it on may write down more attempts."""
    made = type(fault)(fault.message, code=fault.code, retry_after_ms=fault.retry_after_ms, status=fault.status)
    made.attempts = fault.attempts
    return made


class FakeTransport:
    """A wire to nowhere: each method plays its script; `calls` keeps what was asked, in order."""

    def __init__(self, **scripts: Script) -> None:
        self.calls: list[tuple[str, Mapping[str, Any]]] = []
        self.idempotent: list[bool] = []
        self.under_way = 0
        self.most_under_way = 0
        self.closed = False
        self.renewed = 0
        self.overdue_calls = 0
        self._parts = {
            name: _Part(script) for name, script in {"initialize": described(), "ping": {}, **scripts}.items()
        }

    def asked(self, method: str) -> int:
        """How often `method` was called."""
        return sum(name == method for name, _ in self.calls)

    def script(self, method: str, script: Script) -> None:
        """Play this from now on."""
        self._parts[method] = _Part(script)

    def send(self, method: str, params: Mapping[str, Any]) -> Exchange | None:
        """Never without waiting."""
        return None

    @property
    def stderr_tail(self) -> str | None:
        return None

    def overdue(self) -> None:
        self.overdue_calls += 1

    def renew(self) -> None:
        self.renewed += 1

    async def call(self, method: str, params: Mapping[str, Any], *, idempotent: bool = True) -> Reply:
        self.calls.append((method, params))
        self.idempotent.append(idempotent)
        self.under_way += 1
        self.most_under_way = max(self.most_under_way, self.under_way)
        try:
            played = await self._parts[method].play(params)
        finally:
            self.under_way -= 1
        return played if isinstance(played, Reply) else Reply(played)

    async def close(self) -> None:
        self.closed = True


class QuickTransport(FakeTransport):
    """A transport that can always send without waiting."""

    def send(self, method: str, params: Mapping[str, Any]) -> "QuickExchange":
        return QuickExchange(asyncio.ensure_future(self.call(method, params)))


class QuickExchange:
    """A request under way over a QuickTransport."""

    def __init__(self, reply: "asyncio.Future[Reply]") -> None:
        self._reply = reply
        self._callback: Callable[[Any], None] | None = None
        reply.add_done_callback(self._notify)

    def done(self) -> bool:
        return self._reply.done()

    def add_done_callback(self, callback: Callable[[Any], None], /) -> None:
        self._callback = callback

    def take(self) -> Reply:
        return self._reply.result()

    def drop(self) -> None:
        self._callback = None
        self._reply.cancel()

    def _notify(self, reply: "asyncio.Future[Reply]") -> None:
        if not reply.cancelled():
            reply.exception()  # asyncio logs one that nobody looks at
        if self._callback is not None:
            self._callback(self)


class FakeEngine:
    """An engine as the federation knows it. Satisfies `federation.engine.Engine`."""

    def __init__(
        self,
        engine_id: str,
        answer: Script = None,
        *,
        capabilities: Json | None = None,
        gateway_id: str | None = None,
        reached: bool = True,
        down_reason: str | None = None,
        **wishes: Any,
    ) -> None:
        self.id = engine_id
        self.entry = entry_of(engine_id, **wishes)
        self.advertisement = advertised(capabilities, gateway_id=gateway_id) if reached else None
        self.down_reason = down_reason
        self.breaker_open = False
        self.expected_seconds = 0.0
        self.up = reached
        self.asked: list[Mapping[str, Any]] = []
        self.methods: list[str] = []
        self.idempotent: list[bool] = []
        self.ended: list[str] = []
        """How each call ended: `answered`, `failed` or `cancelled`."""
        self._part = _Part({"hits": hits("a", "b", "c")} if answer is None else answer)

    def call(self, method: str, params: Mapping[str, Any], deadline: float, *, idempotent: bool = True) -> InFlightCall:
        """A call that runs in a task."""
        call = InFlightCall(self, method, params, deadline, idempotent=idempotent)
        call.continue_in_task(None)
        return call

    def finish(self, call: InFlightCall, exchange: Exchange) -> Reply | None:
        raise NotImplementedError

    def abandon(self, call: InFlightCall, exchange: Exchange, *, expired: bool) -> LegTimeout:
        raise NotImplementedError

    async def attempts(self, call: InFlightCall, after: LegError | None) -> Reply:
        """Play the script. There is no deadline."""
        params = call.params
        self.methods.append(call.method)
        self.idempotent.append(call.idempotent)
        self.asked.append(params)
        try:
            played = await self._part.play(params)
        except asyncio.CancelledError:
            self.ended.append("cancelled")
            raise
        except Exception:
            self.ended.append("failed")
            raise
        self.ended.append("answered")
        return played if isinstance(played, Reply) else Reply(played)

    def __repr__(self) -> str:
        return f"<FakeEngine {self.id}>"


class FakeEngines:
    """The living set as the membership knows it."""

    def __init__(self, *engines: FakeEngine, disabled: Sequence[str] = ()) -> None:
        self.engines: Sequence[FakeEngine] = engines
        self.disabled = disabled
        self.stand_ins: Sequence[FakeEngine] = ()
        self.shadows: Sequence[FakeEngine] = ()
        self.warming: frozenset[str] = frozenset()
        self.switched_off: frozenset[str] = frozenset()
        self.groups: dict[str, Sequence[str]] = {}
        self.version = 0

    @property
    def asked(self) -> Sequence[FakeEngine]:
        return self.engines

    @property
    def reached(self) -> bool:
        return any(engine.advertisement is not None for engine in self.engines)


def members_of(
    *engines: FakeEngine, disabled: Sequence[str] = (), max_k: int = 200, identity: str = "us", **more: Any
) -> Members:
    """The federation of these engines."""
    offers = tuple(EngineOffer(engine.id, engine.entry.priority, engine.advertisement) for engine in engines)
    return Members(
        identity=identity,
        engines=engines,
        disabled=tuple(disabled),
        capabilities={"retrieve": {"maxK": max_k}},
        offers=offers,
        max_k=max_k,
        excluded_fields=more.pop("excluded_fields", excluded_fields(offers)),
        **more,
    )


def call_of(
    query: Any = "q", *, meta: Json | None = None, now: float = 100.0, seconds: float = 10.0, **params: Any
) -> RetrieveCall:
    """A call accepted at `now`; `params` as on the wire, but `x_gateway` for `x-gateway`."""
    sent = {"query": query, **{key.replace("x_gateway", "x-gateway"): value for key, value in params.items()}}
    read = read_meta(meta)
    if read.deadline_ms is not None:
        seconds = min(seconds, read.deadline_ms / 1000)
    return RetrieveCall(params=read_retrieve(sent), meta=read, started=now, deadline=now + seconds, request_id="test-1")


def method_call_of(
    method: str, params: Json, *, meta: Json | None = None, now: float = 100.0, seconds: float = 10.0
) -> MethodCall:
    """A call of any other method, accepted at `now`; what of `meta` is not ours is passed on, as by the endpoint."""
    read = read_meta(meta)
    if read.deadline_ms is not None:
        seconds = min(seconds, read.deadline_ms / 1000)
    passed_on = {key: value for key, value in (meta or {}).items() if key not in OWN_META}
    return MethodCall(params, read, now, now + seconds, "test-1", passed_on=passed_on, method=method)
