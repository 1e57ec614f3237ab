"""The demo engine `packages`: BM25 over the distributions installed beside the gateway, served over stdio.

It has no filter and a small `maxK`, so that a federation finds an engine that differs from the others.

    python -m app.demo.packages
"""

import re
from collections.abc import Iterable, Mapping
from importlib.metadata import Distribution, distributions
from typing import Any

import rcp

from app.demo.corpus import clip
from app.demo.document import Document, Search, words_of_name
from app.demo.fulltext import FullText
from app.demo.peer import build_server, retrieve_offer, say, serve_stdio
from app.demo.question import Question

NAME = "packages"
CAPABILITIES = {"retrieve": retrieve_offer("sparse", "bm25", max_k=50), "citations": {}}
MAX_DESCRIPTION = 4000


def read_packages(installed: Iterable[Distribution]) -> list[Document]:
    """The distributions as documents, by normalised name; of two with one name the first on the path is kept."""
    documents: dict[str, Document] = {}
    for distribution in installed:
        metadata = distribution.metadata.json
        if metadata.get("name"):  # a half-removed distribution has none
            document = _document(metadata)
            documents.setdefault(document.id, document)
    return [documents[key] for key in sorted(documents)]


def _document(metadata: Mapping[str, Any]) -> Document:
    name, version = metadata["name"], metadata.get("version", "?")
    citation = {"source": "installed distributions", "title": f"{name} {version}"}
    uri = _home_page(metadata)
    if uri:
        citation["uri"] = uri
    text = clip(f"{metadata.get('summary', '')}\n\n{metadata.get('description', '')}", MAX_DESCRIPTION)
    key = re.sub(r"[-_.]+", "-", name).lower()
    return Document(key, words_of_name(name), text or name, citation, {"version": version})


def _home_page(metadata: Mapping[str, Any]) -> str | None:
    """The first web address that the distribution names as its own."""
    urls = [metadata.get("home_page", ""), *(entry.partition(",")[2] for entry in metadata.get("project_url", ()))]
    return next((url.strip() for url in urls if url.strip().startswith(("http://", "https://"))), None)


def build() -> rcp.Server:
    """Index what is installed and make the server."""
    index = FullText(read_packages(distributions()))
    say(NAME, f"{len(index.shelf.documents)} installed distributions indexed")

    def search(question: Question) -> Search:
        return index.search(question.text, question.k, question.where, question.min_score or 0.0)

    return build_server(NAME, CAPABILITIES, search)


if __name__ == "__main__":
    serve_stdio(build)
