"""Who sent a message, as far as the door it came through can tell; made once per message, handed down unchanged.

It refuses to know what is asked. A named tuple, since one is made for every request.
"""

from typing import NamedTuple


class Caller(NamedTuple):
    """One caller of one message."""

    request_id: str
    """Names the request in the log and, over HTTP, in the answer's `X-Request-ID`."""
    session: str | None = None
    """Within which its requests can be called off; None: they cannot be. Over HTTP as it was sent, so not trusted."""
    engine: str | None = None
    """The one engine it speaks to through this gateway; None: the whole federation."""
    address: str = ""
    """Where it connects from, without the port; empty where there is no such thing."""
