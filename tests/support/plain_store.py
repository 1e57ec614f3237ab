"""A store that keeps nothing but JSON text, as one outside the process would: what is kept must survive that."""

import json
from collections.abc import Callable
from typing import Any


class PlainStore:
    """Satisfies `state.store.Store`; forgets nothing."""

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

    async def delete(self, key: str) -> None:
        self.texts.pop(key, None)
