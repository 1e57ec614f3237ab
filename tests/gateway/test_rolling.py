"""Two gateways behind a balancer, replaced one after the other while requests come: none is lost (B118)."""

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path
from signal import SIGTERM
from typing import Any

import httpx2

from tests.support.gateway_process import GatewayProcess, gateway_process
from tests.support.running_gateway import entry

BRIEF = {"server": {"drain_seconds": 2}}
PAUSE = 0.02
"""Seconds between two requests: fifty of them a second."""
MOST_UNDER_WAY = 50
"""Requests at a time: a machine that is too slow for the rate is busy enough with these."""


class Balancer:
    """As simple as they come: in turn, over connections that it keeps, and on to the next if one is refused.

    It asks no probe, and a request that was sent is never sent again.
    """

    def __init__(self) -> None:
        self.gateways: list[GatewayProcess] = []
        self.lost: list[str] = []
        self.answered = 0
        self._turn = 0

    async def ask(self) -> None:
        """Send one request to whoever takes it."""
        self._turn += 1
        turn = self._turn
        for step in range(len(self.gateways)):
            gateway = self.gateways[(turn + step) % len(self.gateways)]
            try:
                answer = await gateway.retrieve()
            except httpx2.ConnectError:
                continue
            except httpx2.TransportError as fault:
                self.lost.append(repr(fault))
                return
            if answer.status_code == 200 and "degraded" not in answer.json()["result"]["_meta"]:
                self.answered += 1
            else:
                self.lost.append(answer.text)
            return
        self.lost.append("nobody took it")


async def test_a_rolling_restart_loses_nothing(engines: Any, tmp_path: Path) -> None:
    """Both gateways are stopped and replaced under fifty requests a second, and every request is answered well."""
    engine, balancer = await engines(), Balancer()
    folders = [tmp_path / str(number) for number in range(4)]
    for folder in folders:
        folder.mkdir()

    async def start(stack: AsyncExitStack, folder: Path) -> GatewayProcess:
        return await stack.enter_async_context(gateway_process(folder, [entry("e", engine)], BRIEF))

    async with AsyncExitStack() as stack:
        balancer.gateways = [await start(stack, folders[0]), await start(stack, folders[1])]
        asked: set[asyncio.Task[None]] = set()
        ending = asyncio.Event()

        async def load() -> None:
            while not ending.is_set():
                if sum(not task.done() for task in asked) < MOST_UNDER_WAY:
                    asked.add(asyncio.create_task(balancer.ask()))
                await asyncio.sleep(PAUSE)

        loading = asyncio.create_task(load())
        for place in (0, 1):
            before = balancer.gateways[place]
            after = await start(stack, folders[2 + place])
            before.signal(SIGTERM)
            assert await before.ended() == 0
            balancer.gateways[place] = after
        ending.set()
        await loading
        await asyncio.gather(*asked)
    assert balancer.lost == []
    assert balancer.answered == len(asked) >= 50
