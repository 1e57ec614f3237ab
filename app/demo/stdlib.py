"""The demo engine `stdlib`: BM25 over the docstrings of the standard library, over HTTP. Sparse retrieval only.

python -m app.demo.stdlib --port 9001
"""

import rcp

from app.demo.fulltext import FullText
from app.demo.library import read_library
from app.demo.rcp_server import FILTER_OFFER, build_server, retrieve_offer, say, serve_http

NAME = "stdlib"
CAPABILITIES = {"retrieve": retrieve_offer("sparse", "bm25", max_k=200), "filter": FILTER_OFFER, "citations": {}}


def build() -> rcp.Server:
    """Read the library, index it and make the server."""
    index = FullText(read_library(NAME))
    say(NAME, f"{len(index.router.documents)} entries indexed")
    return build_server(NAME, CAPABILITIES, index.search)


if __name__ == "__main__":
    serve_http(NAME, build)
