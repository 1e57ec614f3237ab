"""The demo engine `packages`: BM25 over the installed distributions, served over stdio.

It offers no filter and a small `maxK`, so that the demo engines differ.

    python -m app.demo.packages
"""

import re
from collections.abc import Iterable, Mapping
from importlib.metadata import Distribution, distributions
from typing import Any

import rcp

from app.demo.corpus import clip
from app.demo.demo_document import DemoDocument, words_of_name
from app.demo.fulltext import FullText
from app.demo.rcp_server import build_server, retrieve_offer, say, serve_stdio

NAME = "packages"
CAPABILITIES = {"retrieve": retrieve_offer("sparse", "bm25", max_k=50), "citations": {}}
GATEWAY = "rcp-gateway"
MAX_DESCRIPTION = 2000
_MARKUP = tuple(
    (re.compile(pattern, re.MULTILINE), kept)
    for pattern, kept in (
        (r"<!--[\s\S]*?-->|</?[A-Za-z][\w-]*(\s[^>]*)?/?>", " "),
        (r"!\[[^\]]*\](\([^)]*\)|\[[^\]]*\])?", ""),  # a picture in Markdown
        (r"\[([^\]]*)\](\([^)]*\)|\[[^\]]*\])", r"\1"),  # a link in Markdown
        (r"^\s*(\.\. .*|:[\w-]+:.*|\[[^\]]+\]:.*)$", ""),  # directives, options and link targets
        (r"`([^`<]+?)\s*<[^>`]*>`_+|`([^`]+)`_+", r"\1\2"),  # a link in reStructuredText
        (r"\|[^|\n]+\|_*", ""),
        (r"^[=\-~^\"'#*+\s]{3,}$|^#+ ", ""),  # underlines and the marks of headings
        (r"\n\s*\n\s*", "\n\n"),
    )
)


def read_packages(installed: Iterable[Distribution]) -> list[DemoDocument]:
    """The distributions as documents, by normalised name; of two with one name the first on the path is kept.

    The gateway itself is left out: its README quotes the sample question, and would be found by it.
    """
    documents: dict[str, DemoDocument] = {}
    for distribution in installed:
        metadata = distribution.metadata.json
        if metadata.get("name"):  # a half-removed distribution has none
            document = _document(metadata)
            documents.setdefault(document.id, document)
    documents.pop(GATEWAY, None)
    return [documents[key] for key in sorted(documents)]


def _document(metadata: Mapping[str, Any]) -> DemoDocument:
    name, version = metadata["name"], metadata.get("version", "?")
    citation = {"source": "installed distributions", "title": f"{name} {version}"}
    uri = _home_page(metadata)
    if uri:
        citation["uri"] = uri
    text = clip(f"{metadata.get('summary', '')}\n\n{plain(metadata.get('description', ''))}", MAX_DESCRIPTION)
    key = re.sub(r"[-_.]+", "-", name).lower()
    return DemoDocument(key, words_of_name(name), text or name, citation, {"version": version})


def _home_page(metadata: Mapping[str, Any]) -> str | None:
    """The web address that the distribution names as its home, or else the first one that it names."""
    labelled = [entry.partition(",") for entry in metadata.get("project_url", ())]
    urls = {label.strip().lower(): url.strip() for label, _, url in labelled}
    candidates = [
        metadata.get("home_page", ""),
        *map(urls.get, ("homepage", "documentation", "source")),
        *urls.values(),
    ]
    return next((url for url in candidates if url and url.startswith(("http://", "https://"))), None)


def plain(markup: str) -> str:
    """The words of a Markdown, reStructuredText or HTML text: no tags, pictures, link targets and underlines."""
    for pattern, kept in _MARKUP:
        markup = pattern.sub(kept, markup)
    return markup


def build() -> rcp.Server:
    """Index what is installed and make the server."""
    index = FullText(read_packages(distributions()))
    say(NAME, f"{len(index.router.documents)} installed distributions indexed")
    return build_server(NAME, CAPABILITIES, index.search)


if __name__ == "__main__":
    serve_stdio(build)
