"""Ports that a test names before anybody listens there: for programs that must be told one, and for servers that come
back where they were.

They are none of those that the system gives away by itself, so nobody takes one by chance meanwhile.
"""

import random
import socket
from contextlib import suppress
from pathlib import Path

LOWEST = 10_000
_GIVEN_AWAY = Path("/proc/sys/net/ipv4/ip_local_port_range")
_chance = random.SystemRandom()
"""Test processes that begin with one and the same seed must not come to one and the same port."""


def free_port() -> int:
    """A port of loopback that is free now, and still is when a test comes to use it."""
    while True:
        port = _chance.randrange(LOWEST, _highest())
        with suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port


def _highest() -> int:
    """Where the ports begin that the system gives away."""
    lowest_given = int(_GIVEN_AWAY.read_text().split()[0]) if _GIVEN_AWAY.exists() else 32_768
    return lowest_given if lowest_given > LOWEST + 1000 else 65_536
