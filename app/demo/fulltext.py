"""BM25 search with SQLite's FTS5, used by the engines `stdlib` and `packages`."""

import math
import re
from collections.abc import Sequence

from app.demo.demo_document import DemoDocument, Found, Search
from app.demo.document_store import DocumentStore
from app.demo.query_params import DemoQuery

NAME_WEIGHT = 2.0
"""How often a word of a name counts, as if the text had repeated it."""
SATURATION = 2.2
"""FTS5's BM25 gives a word at most its idf times (k1 + 1), with k1 = 1.2."""
MAX_WORDS = 64
_STOP_WORDS = (
    "a an and are as at be by can do does for from how i in is it its me my of on or should that the this to what when "
    "where which who why will with you"
)
STOP_WORDS = frozenset(_STOP_WORDS.split())


class FullText:
    """A BM25 index. Scores are FTS5's with the sign turned: 0 is the floor and more is better."""

    def __init__(self, documents: Sequence[DemoDocument]) -> None:
        self.router = DocumentStore(documents)
        self._sql = self.router.database
        self._sql.execute("CREATE VIRTUAL TABLE words USING fts5(names, text, tokenize = 'porter unicode61')")
        rows = ((place, document.names, document.text) for place, document in enumerate(documents))
        self._sql.executemany("INSERT INTO words (rowid, names, text) VALUES (?, ?, ?)", rows)

    def search(self, question: DemoQuery) -> Search:
        """The `k` best documents that hold any word of the question, fulfil its `where` and reach its `min_score`.

        A confidence is the document's score as a share of the most that any document could score for this question:
        it rises with the score, and a question full of words that nobody here knows is answered without much of it.
        """
        words = words_of(question.text)
        if not words:
            return Search()
        where = question.where
        condition = f"AND rowid IN (SELECT place FROM shelf WHERE {where.sql})" if where else ""
        rows = self._sql.execute(
            f"SELECT rowid, -bm25(words, {NAME_WEIGHT}, 1.0) AS score FROM words"
            f" WHERE words MATCH ? AND score >= ? {condition} ORDER BY score DESC, rowid",
            (" OR ".join(map(quoted, words)), question.min_score or 0.0, *(where.values if where else ())),
        ).fetchall()
        most = SATURATION * sum(map(self._idf, words))
        found = [
            Found(self.router.documents[place], score, min(score / most, 1.0)) for place, score in rows[: question.k]
        ]
        return Search(found, len(rows))

    def _idf(self, word: str) -> float:
        """The word's weight, as FTS5 reckons it."""
        ((holders,),) = self._sql.execute("SELECT COUNT(*) FROM words WHERE words MATCH ?", (quoted(word),))
        return max(math.log((len(self.router.documents) - holders + 0.5) / (holders + 0.5)), 1e-6)

    def close(self) -> None:
        """Let go of the index."""
        self.router.close()

    def __repr__(self) -> str:
        return f"FullText({len(self.router.documents)} documents)"


def words_of(question: str) -> list[str]:
    """The distinct words of `question` in lower case, without the commonest unless there are no others."""
    words = list(dict.fromkeys(re.findall(r"[^\W_]+", question.lower())))[:MAX_WORDS]
    return [word for word in words if word not in STOP_WORDS] or words


def quoted(word: str) -> str:
    """An FTS5 string: whatever it holds is a word to find and never an operator."""
    return '"' + word.replace('"', '""') + '"'
