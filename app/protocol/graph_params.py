"""What a caller may send with `graph` (RCP §7.9).

Decides what is malformed whatever the capabilities (-32602 with the field), and which operations RCP knows (-32005). It
refuses to know engines.
"""

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from app.protocol.errors import OptionUnsupported
from app.protocol.id_params import Id, read_ids, read_level, read_session
from app.protocol.param_errors import refuse, shown
from app.protocol.param_fields import forwardable, read_count, read_text, required_text

OPS: Final = ("local", "global", "drift", "communities", "neighbors")
MAX_HOPS: Final = 5
"""More hops than that are asked of nobody: what they reach grows with each."""

_ADAPTED: Final = ("k", "seedIds", "hops", "sessionId", "cursor")


class GraphParams(NamedTuple):
    """One well-formed `graph`."""

    op: str
    k: int | None
    seeds: list[Id] | None
    hops: int | None
    """Within MAX_HOPS."""
    session_id: str | None
    raw: dict[str, Any]
    """What goes to every engine as it is."""
    notes: tuple[str, ...] = ()


def read_graph(params: Mapping[str, Any]) -> GraphParams:
    """Check the params of `graph`; more than MAX_HOPS are lowered, with a note.

    Raises InvalidParams (-32602) for what is malformed, OptionUnsupported (-32005) for an `op` that RCP does not know.
    """
    op = required_text(params, "op")
    if op not in OPS:
        raise OptionUnsupported(f"'op' must be one of {', '.join(OPS)}, not {shown(op)}", option="op")
    read_text(params, "query")
    read_level(params)
    seeds = read_ids(params, "seedIds")
    if op == "neighbors" and seeds is None:
        refuse("seedIds", "'seedIds' is required for neighbors: an array of ids")
    hops = read_count(params, "hops")
    notes: tuple[str, ...] = ()
    if hops is not None and hops > MAX_HOPS:
        notes = (f"hops: at most {MAX_HOPS} are walked, not {hops}",)
        hops = MAX_HOPS
    raw = forwardable(params, *_ADAPTED)
    return GraphParams(op, read_count(params, "k"), seeds, hops, read_session(params), raw, notes)
