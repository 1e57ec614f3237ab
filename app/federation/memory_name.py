"""The name that callers know a memory by (RCP §7.17): its engine and that engine's own name, in one word.

Pure, and the same after a restart and in another replica, for memories outlive this process. Opaque, with a check
against what was altered or mistyped; whether a memory is there and whose it is stays its engine's to say. It refuses to
know engines.
"""

from base64 import urlsafe_b64decode, urlsafe_b64encode
from binascii import Error as NotBase64
from hashlib import blake2b
from typing import NamedTuple

from app.protocol.errors import NotFound

PREFIX = "mem1."
MAX_NAME = 4096
"""Characters of a memory's name; more is neither made nor read."""

_CHECK = 9
"""Bytes of the check."""


class Memory(NamedTuple):
    """One memory: whose it is, and what its engine calls it."""

    engine: str
    own: str


def name_of(memory: Memory, tenant: str = "") -> str:
    """The word by which this tenant (empty: nobody tells them apart) knows it, always the same."""
    body = f"{memory.engine}\0{memory.own}".encode("utf-8", "surrogatepass")
    return PREFIX + urlsafe_b64encode(_check(body, tenant) + body).decode().rstrip("=")


def memory_of(name: str, tenant: str = "") -> Memory:
    """The memory of this name. Raises NotFound (-32015) for a word that this tenant was not given."""
    memory = _read(name[len(PREFIX) :]) if name.startswith(PREFIX) and len(name) <= MAX_NAME else None
    if memory is None or name_of(memory, tenant) != name:
        raise NotFound("no such memory; send 'memoryId' exactly as it was answered", field="memoryId")
    return memory


def _read(word: str) -> Memory | None:
    try:
        body = urlsafe_b64decode(word + "=" * (-len(word) % 4))[_CHECK:]
        engine, zero, own = body.decode("utf-8", "surrogatepass").partition("\0")
    except (NotBase64, ValueError):
        return None
    return Memory(engine, own) if zero else None


def _check(body: bytes, tenant: str) -> bytes:
    return blake2b(tenant.encode() + b"\0" + body, digest_size=_CHECK, person=b"memory").digest()
