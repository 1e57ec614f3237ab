"""Chaos: episodes in which some engines fall ill while callers ask, and what must hold in each.

Everything that chance decides comes from one seed. An episode makes 1 to N-1 of N engines sick, puts load on the
gateway, heals them and waits until all are used again.
"""

import asyncio
import itertools
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.chaos.caller import Answer, Caller
from tests.chaos.faults import ANSWERING, FAULTS
from tests.chaos.gateway_process import GatewayProcess, Holdings, gateway_process
from tests.chaos.machine import Machine
from tests.chaos.sick_engine import SickEngine

Json = dict[str, Any]

ENGINES = 5
CALLERS = 12
TIMEOUT_MS = 800
"""Given to one engine; many times what a well one takes on a busy machine."""
DEADLINE_MS = 2500
GRACE_MS = 100
"""By which the gateway may overrun the deadline by its own reckoning."""
DRIVER_SECONDS = 5.0
"""By which it may do so by the driver's, whose machine may be busy with anything."""
COOL_DOWN = 2.0
"""Longest time for which the gateway leaves a failing engine alone, as set."""
BACK_SECONDS = COOL_DOWN + 30.0
"""Within which an engine that is well again must be used again; most of it is for a busy machine."""
LOST = 0.25
"""A well engine may be missed, or an answer be late, if the machine kept us from running for so many seconds."""
EXCUSED = 0.25
"""Share of requests for which that may be; beyond it a run says nothing."""
GROWTH = 48 * 1024 * 1024
"""Bytes by which the gateway's memory may have grown; what an allocator keeps, and no leak of 10,000 requests."""
SPARE = 6
"""Descriptors more than in the beginning that do not matter: a pool that has not let go of a connection yet."""


SETTLED_SECONDS = 40.0
"""Within which the gateway must have let go of what it does not need any more."""


class Broken(AssertionError):
    """An invariant that did not hold."""


class TooBusy(Broken):
    """A machine that spoilt so many answers that the others say nothing."""


@dataclass(frozen=True)
class Episode:
    """Who is sick with what, and how many requests are asked meanwhile."""

    sick: dict[str, str]
    requests: int

    def __str__(self) -> str:
        return f"{self.requests} requests with " + ", ".join(f"{name} {fault}" for name, fault in self.sick.items())


@dataclass
class Outcome:
    """What came of a run."""

    seed: int
    episodes: int = 0
    requests: int = 0
    slowest: float = 0.0
    excused: int = 0
    back: float = 0.0
    """The longest that an engine which was well again was not used, in seconds."""
    before: Holdings | None = None
    after: Holdings | None = None
    missed: Counter[str] = field(default_factory=Counter)
    """Fault -> answers from which an engine was missing for it."""


def episodes(chance: random.Random, names: Sequence[str], requests: int, each: int) -> Iterator[Episode]:
    """Every fault alone, then combinations at random, until `requests` are planned."""
    alone = list(FAULTS)
    chance.shuffle(alone)
    planned = 0
    for number in itertools.count():
        if planned >= requests:
            return
        if number < len(alone):
            sick = {chance.choice(names): alone[number]}
        else:
            fallen = chance.sample(names, chance.randint(1, len(names) - 1))
            sick = {name: chance.choice(list(FAULTS)) for name in sorted(fallen)}
        wanted = min(each, requests - planned)
        planned += wanted
        yield Episode(sick, wanted)


def settings() -> dict[str, Json]:
    """A gateway that forgets quickly and keeps little, so that what it does not let go of shows."""
    return {
        "engines": {
            "max_response_bytes": 1_048_576,
            "idle_seconds": 1.0,
            "health_interval_seconds": 1.0,
            "reconnect_max_seconds": 1.0,
            "breaker_open_ms": 200,
            "breaker_longest_open_ms": int(COOL_DOWN * 1000),
        },
        "server": {"drain_seconds": 0.0},
        "state": {"max_kept_hits": 0, "max_cursors": 100},
    }


class Chaos:
    """One run against one gateway."""

    def __init__(self, seed: int, place: Path, told: Callable[[str], None] = lambda _: None) -> None:
        self.outcome = Outcome(seed)
        self._chance = random.Random(seed)
        self._place = place
        self._told = told
        self._engines = [self._engine(number) for number in range(ENGINES)]
        self._expected: dict[frozenset[str], list[str]] = {}
        self._machine = Machine()

    def _engine(self, number: int) -> SickEngine:
        documents = [f"doc-{name:02}" for name in range(30)]
        ranking = self._chance.sample(documents, 20)
        return SickEngine(f"engine-{number}", ranking, random.Random(self._chance.random()))

    async def run(self, requests: int, each: int) -> Outcome:
        """Ask so many requests, `each` in an episode. Raises Broken."""
        for engine in self._engines:
            await engine.start()
        entries = [{"id": engine.name, "url": engine.url, "timeoutMs": TIMEOUT_MS} for engine in self._engines]
        try:
            async with self._machine, gateway_process(self._place, entries, settings()) as gateway:
                self._machine.watched.append(gateway.process.pid)
                await self._all_used(gateway)
                await self._learn(gateway)
                self.outcome.before = gateway.holdings()
                names = [engine.name for engine in self._engines]
                for episode in episodes(self._chance, names, requests, each):
                    self._told(str(episode))
                    await self._play(gateway, episode)
                await self._settled(gateway)
            faults = gateway.logged("Traceback", "internal_error", "never retrieved", "internal fault")
            if faults:
                raise Broken(f"the gateway's log tells of {len(faults)} faults of its own: {faults[0][:300]}")
        finally:
            for engine in self._engines:
                await engine.stop()
        if self.outcome.excused > max(2, EXCUSED * self.outcome.requests):
            raise TooBusy(f"{self.outcome.excused} answers were spoilt by this machine, which is too busy to tell")
        return self.outcome

    async def _play(self, gateway: GatewayProcess, episode: Episode) -> None:
        """One episode, from falling ill until everybody is used again."""
        by_name = {engine.name: engine for engine in self._engines}
        for name, fault in episode.sick.items():
            await by_name[name].fall_ill(FAULTS[fault])
        left = iter(range(episode.requests))
        callers = [Caller(gateway.port) for _ in range(CALLERS)]
        try:
            async with asyncio.TaskGroup() as group:
                for caller in callers:
                    group.create_task(self._call(caller, left, episode))
        except* Broken as broken:
            raise broken.exceptions[0] from None
        finally:
            for caller in callers:
                await caller.hang_up()
            for name in episode.sick:
                await by_name[name].heal()
        self.outcome.episodes += 1
        self.outcome.back = max(self.outcome.back, await self._all_used(gateway))

    async def _call(self, caller: Caller, left: Iterator[int], episode: Episode) -> None:
        for _ in left:
            try:
                answer = await caller.ask(question(), self._machine)
            except (OSError, EOFError, TimeoutError) as fault:
                raise Broken(f"a request got no answer: {fault!r}, in {episode}") from None
            self._judge(answer, episode)

    def _judge(self, answer: Answer, episode: Episode) -> None:
        """What must hold for every answer. Raises Broken."""
        self.outcome.requests += 1
        self.outcome.slowest = max(self.outcome.slowest, answer.seconds)
        if answer.status != 200 or "result" not in answer.response:
            error = answer.response.get("error")
            self._excuse(answer, f"HTTP {answer.status} {error}, though an engine was well, in {episode}")
            return
        result = answer.response["result"]
        took = result["usage"]["latencyMs"]
        if took > DEADLINE_MS + GRACE_MS or answer.seconds > DEADLINE_MS / 1000 + DRIVER_SECONDS:
            self._excuse(answer, f"it took {took} ms by the gateway and {answer.seconds:.3f} s here, in {episode}")
        served = answered_by(result)
        missing = {engine.name for engine in self._engines} - served
        for name in missing & episode.sick.keys():
            self.outcome.missed[episode.sick[name]] += 1
        if missing - episode.sick.keys():
            well = missing - episode.sick.keys()
            self._excuse(answer, f"{well} were well and missed, in {episode}: {report_of(result)}")
        liars = {name for name in served & episode.sick.keys() if episode.sick[name] not in ANSWERING}
        if liars:
            raise Broken(f"{liars} cannot have answered, in {episode}: {report_of(result)}")
        found = [hit["id"] for hit in result["hits"]]
        if found != self._expected[served]:
            raise Broken(f"{sorted(served)} give {self._expected[served]}, and {found} came, in {episode}")

    def _excuse(self, answer: Answer, what: str) -> None:
        """Let it pass, and count it, if the machine was to blame. Raises Broken."""
        if answer.lost < LOST:
            raise Broken(f"{what} (the machine lost {answer.lost:.3f} s)")
        self.outcome.excused += 1

    async def _learn(self, gateway: GatewayProcess) -> None:
        """The hits that every choice of engines gives, in their order, while nobody is sick."""
        caller = Caller(gateway.port)
        names = [engine.name for engine in self._engines]
        for count in range(1, len(names) + 1):
            for chosen in itertools.combinations(names, count):
                answer = await caller.ask(question(chosen), self._machine)
                while answered_by(answer.response.get("result", {})) != {*chosen}:
                    self._excuse(answer, f"of {chosen} not all answered: {answer.response}")
                    answer = await caller.ask(question(chosen), self._machine)
                self._expected[frozenset(chosen)] = [hit["id"] for hit in answer.response["result"]["hits"]]
        await caller.hang_up()

    async def _all_used(self, gateway: GatewayProcess) -> float:
        """Wait until one answer is made of all engines' lists; seconds that it took. Raises Broken."""
        caller = Caller(gateway.port)
        began = time.monotonic()
        while True:
            answer = await caller.ask(question())
            result = answer.response.get("result", {"_meta": {}})
            waited = time.monotonic() - began
            if len(answered_by(result)) == len(self._engines):
                await caller.hang_up()
                return waited
            if waited > BACK_SECONDS:
                raise Broken(f"after {waited:.1f} s not all engines that are well are used: {report_of(result)}")
            await asyncio.sleep(0.05)

    async def _settled(self, gateway: GatewayProcess) -> None:
        """See that the gateway holds no more than in the beginning, once pools had time to shrink. Raises Broken."""
        before = self.outcome.before
        assert before is not None
        ends = time.monotonic() + SETTLED_SECONDS
        while True:
            after = self.outcome.after = gateway.holdings()
            level = after.descriptors <= before.descriptors + SPARE and after.threads <= before.threads + 1
            if level and after.rss <= before.rss + GROWTH:
                return
            if time.monotonic() > ends:
                raise Broken(f"the gateway holds {after}, and began with {before}")
            await asyncio.sleep(0.2)


def question(engines: Sequence[str] = ()) -> Json:
    """The params of one request, to all engines or to these alone."""
    restricted = {"x-gateway": {"engines": list(engines)}} if engines else {}
    return {"query": "q", "k": 10, "_meta": {"deadlineMs": DEADLINE_MS}, **restricted}


def report_of(result: Json) -> list[Json]:
    """What the gateway says of each engine."""
    found: list[Json] = result.get("_meta", {}).get("x-gateway", {}).get("engines", [])
    return found


def answered_by(result: Json) -> frozenset[str]:
    """The engines whose lists the answer is made of."""
    return frozenset(entry["id"] for entry in report_of(result) if entry["status"] == "ok")
