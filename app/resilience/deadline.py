"""How much of a request's time one engine may have. Pure arithmetic in seconds; the clock is handed in."""

RESERVE_SHARE = 0.2
"""The reserve never takes more than this share of what remains, so that short deadlines still reach the engines."""


def leg_seconds(remaining: float, own_timeout: float, reserve: float) -> float:
    """Seconds one engine gets: its own timeout, but never into the reserve kept for fusing and writing.

    Strictly less than `remaining` while that is positive (RCP §16 budget rule); 0 or less means: do not ask.
    """
    return min(own_timeout, remaining - min(reserve, remaining * RESERVE_SHARE))
