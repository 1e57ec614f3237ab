"""How much of a request's remaining time one engine call may take. Pure arithmetic in seconds.

Separate so that the planner and the methods that call one engine share one rule.
"""

RESERVE_SHARE = 0.2
"""The reserve never takes more than this share of what remains, so that short deadlines still reach the engines."""

MIN_SHARE = 0.01
"""And never less than this, so that an engine has strictly less than what remains even without a reserve."""


def call_seconds(remaining: float, own_timeout: float, reserve: float) -> float:
    """Seconds one engine gets: its own timeout, but never into the reserve kept for fusing and writing.

    Strictly less than `remaining` while that is positive (RCP §16 budget rule); 0 or less means: do not ask.
    """
    kept = min(max(reserve, remaining * MIN_SHARE), remaining * RESERVE_SHARE)
    return min(own_timeout, remaining - kept)
