"""The name that callers know a memory by (RCP §7.17): its engine and that engine's own name, in one word. Pure.

The name is a capability: whoever presents it reads and overwrites the memory, and engines do not know tenants. It
carries a code that is keyed with the secret of the deployment and bound to the tenant, so that no tenant can make up
another's. Where callers are not told apart the code has no key, and only catches what was altered or mistyped.
"""

from base64 import urlsafe_b64decode, urlsafe_b64encode
from binascii import Error as NotBase64
from hashlib import blake2b
from hmac import compare_digest
from typing import NamedTuple

from app.protocol.errors import NotFound

PREFIX = "mem1."
MAX_NAME = 4096
"""Characters of a memory's name; more is neither made nor read."""

_CHECK = 9
"""Bytes of the code: 72 bits, which can only be guessed by asking us."""


class MemoryOwner(NamedTuple):
    """To whom names are given."""

    tenant: str = ""
    """Empty where callers are not told apart."""
    key: bytes = b""
    """Of at most 64 bytes; empty for names that anybody may make."""


ANYBODY = MemoryOwner()


class MemoryRef(NamedTuple):
    """One memory: whose it is, and what its engine calls it."""

    engine: str
    own: str


def name_of(memory: MemoryRef, owner: MemoryOwner = ANYBODY) -> str:
    """The word by which this owner knows it, always the same for the same key."""
    body = f"{memory.engine}\0{memory.own}".encode("utf-8", "surrogatepass")
    return PREFIX + urlsafe_b64encode(_check(body, owner) + body).decode().rstrip("=")


def memory_of(name: str, owner: MemoryOwner = ANYBODY) -> MemoryRef:
    """The memory of this name. Raises NotFound (-32015) for a word that this owner was not given."""
    memory = _read(name[len(PREFIX) :]) if name.startswith(PREFIX) and len(name) <= MAX_NAME else None
    if memory is None or not compare_digest(name_of(memory, owner).encode(), name.encode("utf-8", "surrogatepass")):
        raise NotFound("no such memory; send 'memoryId' exactly as it was answered", field="memoryId")
    return memory


def _read(word: str) -> MemoryRef | None:
    try:
        body = urlsafe_b64decode(word + "=" * (-len(word) % 4))[_CHECK:]
        engine, zero, own = body.decode("utf-8", "surrogatepass").partition("\0")
    except (NotBase64, ValueError):
        return None
    return MemoryRef(engine, own) if zero else None


def _check(body: bytes, owner: MemoryOwner) -> bytes:
    return blake2b(owner.tenant.encode() + b"\0" + body, digest_size=_CHECK, key=owner.key, person=b"memory").digest()
