"""Random changes of the registry under load, with engines that are well throughout: no change may cost an answer.

A real gateway process, engines with a slow handshake that check tokens, and callers that never pause. Everything
random comes from one seed.
"""

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from signal import SIGHUP
from typing import Any

from tests.chaos.scenario import Broken
from tests.support.gateway_process import GatewayProcess, gateway_process, write_files
from tests.support.scripted_engine import Asked, Http, Json, RpcFault, ScriptedEngine, hits

CALLERS = 16
HANDSHAKE_SECONDS = 0.4
IDS = tuple(f"e{number}" for number in range(10))
ADDRESSES = 3
CHANGES = ("token", "url", "weight", "replicas", "required", "add", "remove", "swap", "settings", "nothing")
MOST = 6
"""Engines in the registry."""


class Corpus:
    """One engine of the registry at several addresses, which take the same tokens."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.tokens = ["t0"]
        self.used = "t0"
        self.addresses = [ScriptedEngine(name=name) for _ in range(ADDRESSES)]
        for address in self.addresses:
            greeted: set[str] = set()
            address.answers = {method: self._script(method, greeted) for method in ("initialize", "ping", "retrieve")}

    def rotate(self) -> str:
        """A new token. Those before the one that was used last are not taken any more."""
        self.tokens = [*self.tokens[self.tokens.index(self.used) :], f"t{int(self.tokens[-1][1:]) + 1}"]
        return self.tokens[-1]

    def _script(self, method: str, greeted: set[str]) -> Callable[[Asked], Any]:
        async def answer(asked: Asked) -> Any:
            token = asked.headers.get("authorization", "").removeprefix("Bearer ")
            if token not in self.tokens:
                return Http(401, b"who are you?")
            if method == "initialize":
                await asyncio.sleep(HANDSHAKE_SECONDS)
                greeted.add(token)
                return {
                    "protocolVersion": 1,
                    "server": {"name": self.name, "version": "1"},
                    "capabilities": {"retrieve": {"maxK": 100, "modes": ["dense"], "confidence": True}},
                }
            if token not in greeted:
                return RpcFault(-32001, "shake hands first")
            if method == "ping":
                return {}
            if self.tokens.index(token) > self.tokens.index(self.used):
                self.used = token
            return {"hits": hits(f"of-{self.name}")}

        return answer


@dataclass
class Told:
    """What came of a run."""

    answers: int = 0
    probes: int = 0
    changes: list[str] = field(default_factory=list)


class Reloads:
    """A gateway process whose registry changes all the time."""

    def __init__(self, seed: int, folder: Path, tell: Callable[[str], None] = lambda line: None) -> None:
        self.told = Told()
        self._random = random.Random(seed)
        self._folder = folder
        self._tell = tell
        self._corpora = {name: Corpus(name) for name in IDS}
        self._entries: dict[str, Json] = {}
        self._settings: Json = {"server": {"reload_seconds": 0.2}}
        self._written: list[frozenset[str]] = []
        """The ids of every registry so far."""
        self._in_force = 0
        """The last of them that is known to be in force."""
        self._warm: set[str] = set()
        """Who has been answered by since it was added."""

    async def run(self, changes: int, workers: int = 1) -> Told:
        """Make so many changes. Raises Broken if one costs anything."""
        for corpus in self._corpora.values():
            for address in corpus.addresses:
                await address.start()
        for name in IDS[:3]:
            self._add(name)
        self._written.append(frozenset(self._entries))
        more = ("--workers", str(workers)) if workers > 1 else ()
        try:
            async with gateway_process(self._folder, [*self._entries.values()], self._settings, *more) as gateway:
                if workers > 1:
                    await gateway.until_told("worker_serves", workers)
                await self._until(lambda: self._warm >= {*self._entries}, gateway, [])
                tasks = [asyncio.create_task(self._call(gateway)) for _ in range(CALLERS)]
                tasks.append(asyncio.create_task(self._probe(gateway)))
                try:
                    for number in range(changes):
                        await self._change(gateway, number, workers, tasks)
                    await self._until(lambda: self._warm >= {*self._entries}, gateway, tasks)
                finally:
                    for task in tasks:
                        task.cancel()
                    await asyncio.gather(*tasks, return_exceptions=True)
                assert "Traceback" not in gateway.text, gateway.text
        finally:
            await asyncio.gather(*(one.stop() for each in self._corpora.values() for one in each.addresses))
        return self.told

    async def _change(
        self, gateway: GatewayProcess, number: int, workers: int, tasks: list[asyncio.Task[None]]
    ) -> None:
        kind = CHANGES[number] if number < len(CHANGES) else self._random.choice(CHANGES)
        self._alter(kind)
        self.told.changes.append(kind)
        self._tell(f"{number}: {kind}: {sorted(self._entries)}")
        reloads = len(gateway.told("reloaded"))
        self._written.append(frozenset(self._entries))
        self._warm &= {*self._entries}
        write_files(self._folder, [*self._entries.values()], self._settings)
        gateway.signal(SIGHUP)
        # On SIGHUP or by the watch, whichever sees it first; the other may add one more.
        await self._until(lambda: len(gateway.told("reloaded")) >= reloads + workers, gateway, tasks)
        self._in_force = len(self._written) - 1
        if self._random.random() < 0.5:
            await self._until(lambda: self._warm >= {*self._entries}, gateway, tasks)
        else:
            seen = self.told.answers + self._random.randrange(CALLERS * 2)
            await self._until(lambda: self.told.answers >= seen, gateway, tasks)

    def _alter(self, kind: str) -> None:
        """Make one change of this kind; where it is not possible, another one."""
        absent = [name for name in IDS if name not in self._entries]
        if (kind == "add" and len(self._entries) >= MOST) or (kind == "remove" and len(self._entries) < 2):
            kind = "swap"
        if kind == "settings":
            self._settings = {**self._settings, "engines": {"idle_seconds": self._random.uniform(5, 60)}}
        elif kind == "add":
            self._add(self._random.choice(absent))
        elif kind == "swap":
            self._entries.clear()
            for name in self._random.sample(absent, self._random.randint(1, 3)):
                self._add(name)
        elif kind != "nothing":
            name = self._random.choice(sorted(self._entries))
            entry = self._entries[name]
            urls = [address.url for address in self._corpora[name].addresses]
            if kind == "remove":
                del self._entries[name]
            elif kind == "token":
                entry["headers"] = {"Authorization": f"Bearer {self._corpora[name].rotate()}"}
            elif kind == "url":
                entry["url"] = self._random.choice([url for url in urls if url != entry["url"]])
                entry["replicas"] = [url for url in entry["replicas"] if url != entry["url"]]
            elif kind == "replicas":
                others = [url for url in urls if url != entry["url"]]
                entry["replicas"] = self._random.sample(others, self._random.randint(0, len(others)))
            elif kind == "weight":
                entry["weight"] = self._random.randint(1, 9) / 2
            else:
                entry["required"] = not entry["required"]

    def _add(self, name: str) -> None:
        corpus = self._corpora[name]
        urls = self._random.sample([address.url for address in corpus.addresses], self._random.randint(1, 2))
        self._entries[name] = {
            **{"id": name, "url": urls[0], "replicas": urls[1:], "timeoutMs": 8000},
            **{"headers": {"Authorization": f"Bearer {corpus.rotate()}"}, "required": self._random.random() < 0.3},
        }

    async def _call(self, gateway: GatewayProcess) -> None:
        while True:
            await self._ask(gateway)

    async def _ask(self, gateway: GatewayProcess) -> None:
        first, warm = self._in_force, frozenset(self._warm)
        answer = (await gateway.retrieve(k=50)).json()
        self.told.answers += 1
        if "result" not in answer:
            raise Broken(f"a request failed: {answer['error']}")
        result = answer["result"]
        if "degraded" in result["_meta"]:
            raise Broken(f"an answer is degraded: {result['_meta']}")
        given = {hit["id"].removeprefix("of-") for hit in result["hits"]}
        # What every registry holds that may have been in force, and the one before that.
        held = frozenset.intersection(*self._written[max(0, first - 1) :])
        if not given >= held & warm:
            raise Broken(f"an answer lacks {sorted((held & warm) - given)}: {result['_meta']}")
        self._warm |= given & self._written[-1]

    async def _probe(self, gateway: GatewayProcess) -> None:
        while True:
            status = await gateway.ready()
            if status != 200:
                raise Broken(f"/readyz says {status}")
            self.told.probes += 1

    async def _until(
        self, condition: Callable[[], bool], gateway: GatewayProcess, tasks: list[asyncio.Task[None]]
    ) -> None:
        """Wait for it while requests are answered; what breaks meanwhile breaks the run."""
        async with asyncio.timeout(60):
            while not condition():
                if not tasks:
                    await self._ask(gateway)
                for task in tasks:
                    if task.done():
                        task.result()
                await asyncio.sleep(0.005)
