"""The decorator that registers checks.

Separate because every module of checks uses it: the first line of a check's docstring is the sentence that is shown.
"""

from collections.abc import Awaitable, Callable
from typing import Literal

from app.conformance.subject import Subject
from app.conformance.verdict import Check, Level, Rule

Body = Callable[[Subject], Awaitable[None]]


class Suite:
    """Checks about one subject matter; each room file has one."""

    def __init__(self) -> None:
        self.checks: list[Check] = []

    def check(
        self,
        id: str,
        level: Level,
        section: str,
        *needs: str,
        over: Literal["http", "stdio"] | None = None,
        rule: Rule = "MUST",
    ) -> Callable[[Body], Body]:
        """Add the decorated function. `needs`: capabilities without which there is nothing to check. `rule`: what a
        Departure breaks; a function that may raise both keeps Departure for its MUST and Tolerated for the rest."""

        def added(body: Body) -> Body:
            sentence = " ".join((body.__doc__ or "").split())
            self.checks.append(Check(id, level, section, sentence, body, needs, over, rule))
            return body

        return added

    def __repr__(self) -> str:
        return f"<Suite {len(self.checks)} checks>"
