"""How a breakable server is made to break one rule: the decorator that lists a break, and what breaks are made of."""

from collections.abc import Callable
from typing import Any

from tests.support.breakable_server import BreakableServer

Json = dict[str, Any]
Break = Callable[[BreakableServer], Any]
BREAKS: list[tuple[str, Break]] = []
"""Every break, after the id of the check that must catch it."""


def caught_by(check: str) -> Callable[[Break], Break]:
    """Add a break and the check that catches it."""

    def added(spoil: Break) -> Break:
        BREAKS.append((check, spoil))
        return spoil

    return added


def alter(server: BreakableServer, method: str, change: Callable[[Json], Any]) -> None:
    """Let `change` alter each response to this method in place, or give another one."""
    whole = server.handle

    def handle(message: Any) -> Any:
        response = whole(message)
        if response is not None and message.get("method") == method:
            return change(response) or response
        return response

    server.handle = handle  # type: ignore[method-assign]


def in_result(server: BreakableServer, method: str, change: Callable[[Json, Json], Any]) -> None:
    """Let `change` alter each result of this method in place, given its params."""

    def changed(before: Callable[[Json], Json], params: Json) -> Json:
        result = before(params)
        change(result, params)
        return result

    server.replace(method, changed)


def without(server: BreakableServer, *names: str) -> None:
    """Let `retrieve` ignore these params."""
    server.replace("retrieve", lambda before, params: before({key: params[key] for key in params if key not in names}))
