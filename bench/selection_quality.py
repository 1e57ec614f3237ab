"""Quality of engine selection against asking every engine: `python -m bench.selection_quality`.

Splits one collection over many BM25 engines, by topic and at random, teaches the selector with unjudged questions and
measures nDCG@10 and Recall@50 of known-item questions: the question is a document's own one-line summary, which no
engine has indexed, and the document is the only relevant one. Collections: the manual pages of a Debian
machine and the docstrings of the standard library. Engines run in this process; calls are counted, not
timed, except the selector's own CPU.
"""

import argparse
import asyncio
import gzip
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Sequence
from itertools import count
from math import log, log2
from pathlib import Path
from random import Random
from statistics import fmean
from time import process_time
from typing import Any, NamedTuple

from app.demo.library import read_library
from app.federation.calls import RetrieveCall
from app.federation.engine_selection import EngineSelector
from app.federation.membership import Members
from app.federation.outcome import Outcome
from app.federation.planner import EngineCall, Plan
from app.fusion.ranked_lists import FusionConfig, RankedList
from app.fusion.rrf import fuse
from app.fusion.term_sketch import terms_of
from app.protocol.retrieve_params import CallMeta, read_retrieve
from app.settings.schema import EngineEntry, SelectSettings

FETCHED = 20
"""Hits of one engine, as a gateway asks for at k = 10."""
RECALL_DEPTH = 50
SHARES = (0.1, 0.25, 0.5)


class Document(NamedTuple):
    """One document of a collection."""

    id: str
    topic: str
    summary: str
    text: str


class Score(NamedTuple):
    """Means over the judged questions, and the share of engine calls that were made."""

    ndcg: float
    recall: float
    calls: float
    n: float


def manual_pages(most: int) -> list[Document]:
    """Manual pages of this machine, by the package that brought them; the NAME line is the summary."""
    found = []
    for listing in sorted(Path("/var/lib/dpkg/info").glob("*.list")):
        package = listing.stem.partition(":")[0]
        for line in listing.read_text().splitlines():
            path = Path(line)
            if path.parent.parent != Path("/usr/share/man") or path.suffix != ".gz" or not path.is_file():
                continue
            source = gzip.decompress(path.read_bytes()).decode("utf-8", "replace")
            name = re.search(r'^\.SH "?NAME"?\n(.*)\n', source, re.MULTILINE)
            body = source.partition("DESCRIPTION")[2]
            text = re.sub(r"\\f.|\\[&-]|^[.'].{0,3}\b|\\", " ", body, flags=re.MULTILINE)[:1500]
            summary = name[1].partition(r"\-")[2].strip() if name else ""
            if len(text) > 200 and len(summary) > 15:
                found.append(Document(f"{package}/{path.stem}", package, summary, text))
    Random(1).shuffle(found)
    return found[:most]


def docstrings(most: int) -> list[Document]:
    """Docstrings of the standard library, by module; the first line is the summary."""
    found = []
    for document in read_library("bench"):
        summary, _, text = document.text.partition("\n")
        if len(text) > 100:
            found.append(Document(document.id, document.id.rpartition(".")[0].partition(".")[0], summary, text))
    Random(1).shuffle(found)
    return found[:most]


class BenchEngine:
    """BM25 over a few documents. Satisfies `federation.engine_interface.Engine` except for calls."""

    advertisement = None
    down_reason = None
    breaker_open = False

    def __init__(self, id: str, documents: Sequence[Document]) -> None:
        self.id = id
        self.entry = EngineEntry.model_validate({"id": id, "url": "http://127.0.0.1/rcp"})
        self._documents = documents
        counts = [Counter(terms_of(document.text)) for document in documents]
        mean = fmean([counter.total() for counter in counts])
        holders = Counter(term for counter in counts for term in counter)
        self._postings: dict[str, list[tuple[int, float]]] = defaultdict(list)
        self._most: dict[str, float] = {}
        for place, counter in enumerate(counts):
            for term, times in counter.items():
                idf = log(1 + (len(documents) - holders[term] + 0.5) / (holders[term] + 0.5))
                weight = idf * times * 2.2 / (times + 1.2 * (0.25 + 0.75 * counter.total() / mean))
                self._postings[term].append((place, weight))
                self._most[term] = idf * 2.2
        self._answers: dict[str, list[dict[str, Any]]] = {}

    def hits(self, query: str) -> list[dict[str, Any]]:
        """The best documents; the confidence is a score's share of the most that any document could reach."""
        known = self._answers.get(query)
        if known is not None:
            return known
        scores: dict[int, float] = defaultdict(float)
        terms = set(terms_of(query))
        rare = log(1 + len(self._documents))  # a term that nobody here has counts as the rarest one
        most = sum([self._most.get(term, rare * 2.2) for term in terms])
        for term in terms:
            for place, weight in self._postings.get(term, ()):
                scores[place] += weight
        best = sorted(scores.items(), key=lambda item: (-item[1], item[0]))[:FETCHED]
        answer = [
            {
                "id": self._documents[place].id,
                "score": score,
                "confidence": min(1.0, score / most),
                "text": self._documents[place].text,
            }
            for place, score in best
        ]
        self._answers[query] = answer
        return answer

    def __repr__(self) -> str:
        return f"<BenchEngine {self.id}, {len(self._documents)} documents>"


def by_topic(documents: Sequence[Document], engines: int) -> list[BenchEngine]:
    """Engines of one topic each; large topics are cut into several engines in the order of their documents' ids."""
    topics: dict[str, list[Document]] = defaultdict(list)
    for document in documents:
        topics[document.topic].append(document)
    parts = [sorted(part) for part in topics.values()]
    while len(parts) < engines:
        parts.sort(key=len)
        largest = parts.pop()
        parts += [largest[: len(largest) // 2], largest[len(largest) // 2 :]]
    while len(parts) > engines:
        parts.sort(key=len, reverse=True)
        smallest = parts.pop()
        parts[-1] = parts[-1] + smallest
    return [BenchEngine(f"e{place:03}", part) for place, part in enumerate(parts)]


def at_random(documents: Sequence[Document], engines: int) -> list[BenchEngine]:
    """Random shards of equal size."""
    return [BenchEngine(f"e{place:03}", documents[place::engines]) for place in range(engines)]


class Federation:
    """The engines of one split behind one selector."""

    def __init__(self, engines: Sequence[BenchEngine], settings: SelectSettings) -> None:
        self.engines = engines
        self.settings = settings
        self.selector = EngineSelector(random=Random(5))
        self.members = Members("bench", engines, (), {}, (), 200)  # type: ignore[arg-type]
        self.spent = 0.0
        """Seconds of CPU in choosing."""
        self.asked = 0

    async def ask(self, query: str, select: Any = None) -> tuple[list[str], int]:
        """The ids of the answer, best first, and how many engines were asked."""
        params = read_retrieve({"query": query, "k": RECALL_DEPTH, "x-gateway": {"select": select}})
        call = RetrieveCall(params, CallMeta(), 0.0, 10.0, "bench")
        calls = tuple([EngineCall(engine, {}, 1.0, 1.0, 1.0, FETCHED) for engine in self.engines])  # type: ignore[arg-type]
        began = process_time()
        plan = self.selector.select(call, self.members, self.settings, Plan(calls, (), RECALL_DEPTH, FusionConfig()))
        self.spent += process_time() - began
        self.asked += 1
        by_id = {engine.id: engine for engine in self.engines}
        answers = [(one.engine.id, by_id[one.engine.id].hits(query)) for one in plan.engine_calls]
        fusion = fuse([RankedList(engine, hits, 1.0, fetch_k=FETCHED) for engine, hits in answers], FusionConfig())
        hits = fusion.hits(0, RECALL_DEPTH)
        if plan.selection is not None:
            outcomes = [Outcome(engine, "ok", hits) for engine, hits in answers]
            self.selector.answered(call, plan.selection, outcomes, hits[:10])
            await self.selector.finish_learning()
        return fusion.keys(0, RECALL_DEPTH), len(plan.engine_calls)

    async def measure(self, judged: Sequence[Document], select: Any) -> Score:
        """Ask every judged question once."""
        gains, found, calls = [], [], []
        for document in judged:
            ids, asked = await self.ask(document.summary, select)
            place = ids.index(document.id) if document.id in ids else None
            gains.append(1 / log2(place + 2) if place is not None and place < 10 else 0.0)
            found.append(float(place is not None))
            calls.append(asked / len(self.engines))
        size = next(iter(self.selector.state(self.settings)["views"]), {"n": None})["n"]
        return Score(fmean(gains), fmean(found), fmean(calls), size or len(self.engines))


async def compared(
    engines: Sequence[BenchEngine], judged: Sequence[Document], traffic: Sequence[Document]
) -> list[list[str]]:
    """The rows of one split."""
    settings = SelectSettings(mode="on")
    federation = Federation(engines, settings)
    seconds = count()
    federation.selector = EngineSelector(clock=lambda: float(next(seconds)), random=Random(5))
    for document in traffic:
        await federation.ask(document.summary)
    everybody = await federation.measure(judged, False)
    rows = [_row("all", everybody, everybody)]
    for share in SHARES:
        score = await federation.measure(judged, {"engines": max(1, round(share * len(engines)))})
        rows.append(_row(f"{share:.0%} asked", score, everybody))
    rows.append(_row("coverage 0.8", await federation.measure(judged, True), everybody))
    rows.append(["CPU of choosing", f"{federation.spent / federation.asked * 1e6:.0f} us", "", "", ""])
    return rows


def _row(name: str, score: Score, everybody: Score) -> list[str]:
    if score is everybody:
        return [name, f"{score.ndcg:.3f}", f"{score.recall:.3f}", "100 %", ""]
    return [
        name,
        f"{score.ndcg - everybody.ndcg:+.3f}",
        f"{score.recall - everybody.recall:+.3f}",
        f"{score.calls:.0%}",
        f"{score.n:.0f}",
    ]


def main() -> int:
    """Print one table for each collection and split."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--collections", nargs="+", choices=("manual", "docstrings"), default=["manual", "docstrings"])
    parser.add_argument("--engines", type=int, default=100)
    parser.add_argument("--documents", type=int, default=10_000)
    parser.add_argument("--traffic", type=int, default=2000, help="unjudged questions before the measurement")
    parser.add_argument("--judged", type=int, default=300)
    given = parser.parse_args()
    for name in given.collections:
        documents = (manual_pages if name == "manual" else docstrings)(given.documents)
        asked = Random(2).sample(documents, min(len(documents), given.traffic + given.judged))
        judged, traffic = asked[: given.judged], asked[given.judged :]
        for split, engines in (("by topic", by_topic), ("at random", at_random)):
            made = engines(documents, given.engines)
            print(f"\n{name}: {len(documents)} documents, {len(made)} engines {split}, {len(traffic)} questions before")
            rows = asyncio.run(compared(made, judged, traffic))
            for row in [["asked", "nDCG@10", "R@50", "calls", "n"], *rows]:
                print(f"{row[0]:16}" + "".join([f"{cell:>10}" for cell in row[1:]]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
