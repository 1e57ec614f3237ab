"""Identity keys of hits: stringified id, normalised `citation.uri`, or a hash of the normalised text.

Hits with equal keys are one document. A hit without a URI or text falls back to its id, and keys of different kinds
are never equal.
"""

from functools import lru_cache
from hashlib import blake2b
from typing import Any, Final, Literal
from unicodedata import normalize
from urllib.parse import SplitResult, urlsplit

Identity = Literal["id", "uri", "content"]

_DEFAULT_PORTS: Final = {"http": 80, "https": 443}


def identify(hits: list[dict[str, Any]], identity: Identity, namespace: str | None) -> list[str]:
    """One key per hit (RCP §16.3). Under `id` the key is the stringified id itself, with its namespace."""
    if identity == "id":
        if namespace is None:
            return [own if type(own := hit["id"]) is str else f"{own}" for hit in hits]
        return [f"{namespace}:{hit['id']}" for hit in hits]
    # The prefixes `uri:`, `content:` and `id:` keep keys of different kinds apart.
    mark = _uri_mark if identity == "uri" else _content_mark
    return [mark(hit) or f"id:{public_id(hit, namespace)}" for hit in hits]


def public_id(hit: dict[str, Any], namespace: str | None) -> str | int | float:
    """The id as callers see it: untouched, or a string with its namespace."""
    own: str | int | float = hit["id"]
    return own if namespace is None else f"{namespace}:{own}"


def body_text(hit: dict[str, Any]) -> str:
    """The hit's `text`, else the text blocks of its `content`, else nothing."""
    text = hit.get("text")
    if type(text) is str and text:
        return text
    blocks = hit.get("content")
    if type(blocks) is not list:
        return ""
    texts = (block if type(block) is str else block.get("text") if type(block) is dict else None for block in blocks)
    return "\n".join(text for text in texts if type(text) is str)


def _uri_mark(hit: dict[str, Any]) -> str | None:
    citation = hit.get("citation")
    uri = citation.get("uri") if type(citation) is dict else None
    return f"uri:{normalized_uri(uri)}" if type(uri) is str and uri.strip() else None


def _content_mark(hit: dict[str, Any]) -> str | None:
    words = normalize("NFKC", body_text(hit)).casefold().split()
    if not words:
        return None
    return f"content:{blake2b(' '.join(words).encode('utf-8', 'surrogatepass'), digest_size=16).hexdigest()}"


@lru_cache(maxsize=4096)
def normalized_uri(uri: str) -> str:
    """`uri` without differences that do not change the document; unchanged if it cannot be parsed.

    These are host case, default port, trailing slash, fragment, `utm_*` parameters, and http versus https.
    """
    uri = uri.strip()
    try:
        parts = urlsplit(uri)
        port = parts.port
    except ValueError:
        return uri
    scheme = "https" if parts.scheme == "http" else parts.scheme
    kept = [pair for pair in parts.query.split("&") if pair and not pair.lower().startswith("utm_")]
    path = parts.path.rstrip("/")
    return SplitResult(scheme, _authority(parts, port), path, "&".join(kept), "").geturl()


def _authority(parts: SplitResult, port: int | None) -> str:
    user, at, address = parts.netloc.rpartition("@")
    host = parts.hostname or ""
    if address.startswith("["):
        host = f"[{host}]"
    default = port is None or port == _DEFAULT_PORTS.get(parts.scheme)
    return f"{user}{at}{host}" if default else f"{user}{at}{host}:{port}"
