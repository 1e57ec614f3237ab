"""A small server on the published SDK, as most are: dense retrieval over a few texts, given as strings alone.

    python tests/support/small_server.py [LEVEL]

It keeps the MUSTs of RCP and few of its recommendations. Without LEVEL it states none, which is a MUST as well.
"""

import sys
from typing import Any

import rcp

Json = dict[str, Any]

TEXTS = ("a test of towers", "a test of the light in plants", "walls and their test", "nothing of the kind")


def retrieve(params: Json) -> Json:
    """The texts by how many words of the query they hold."""
    query = params.get("query")
    if not isinstance(query, str):
        raise rcp.RcpError(-32602, "the query is a string here", {"field": "query"})
    if params.get("mode", "dense") != "dense":
        raise rcp.RcpError(-32005, "only dense", {"option": "mode"})
    if "filter" in params:
        raise rcp.RcpError(-32005, "no filters", {"option": "filter"})
    words = set(query.lower().split())
    scored = [(float(len(words & set(text.split()))), f"d{place}", text) for place, text in enumerate(TEXTS)]
    best = sorted(scored, key=lambda one: (-one[0], one[1]))[: params.get("k", 10)]
    return {"hits": [{"id": name, "score": score, "text": text} for score, name, text in best]}


if __name__ == "__main__":
    server = rcp.Server()
    server.set_info("small", "1.0")
    if len(sys.argv) > 1:
        server.set_conformance(sys.argv[1])
    server.advertise("retrieve", {"maxK": 10, "modes": ["dense"]})
    server.on("retrieve", retrieve)
    server.serve_stdio()
