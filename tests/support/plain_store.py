"""A store that keeps nothing but JSON text, as one outside the process would: what is kept must survive that."""

import json
from collections.abc import Callable
from typing import Any


class PlainStore:
    """Satisfies `state.store.Store`; forgets nothing."""

    degraded = False

    def __init__(self) -> None:
        self.texts: dict[str, str] = {}
        self.seconds: dict[str, float] = {}
        self.sizes: dict[str, int] = {}

    async def get(self, key: str, load: Callable[[Any], Any]) -> Any:
        text = self.texts.get(key)
        return None if text is None else load(json.loads(text))

    async def put(self, key: str, value: Any, seconds: float, dump: Callable[[Any], Any], *, size: int = 1) -> None:
        self.texts[key] = json.dumps(dump(value), allow_nan=False)
        self.seconds[key] = seconds
        self.sizes[key] = size

    async def change(
        self,
        key: str,
        change: Callable[[Any], Any],
        seconds: float,
        load: Callable[[Any], Any],
        dump: Callable[[Any], Any],
        *,
        size: Callable[[Any], int],
    ) -> Any:
        changed = change(await self.get(key, load))
        if changed is None:
            return await self.get(key, load)
        await self.put(key, changed, seconds, dump, size=size(changed))
        return changed

    async def delete(self, key: str) -> None:
        self.texts.pop(key, None)
