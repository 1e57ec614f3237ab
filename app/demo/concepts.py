"""The demo engine `concepts`: dense retrieval with latent semantic vectors over the entries of `stdlib`, over HTTP.

TF-IDF reduced by a truncated SVD to DIMENSIONS dimensions, compared by cosine.

    python -m app.demo.concepts --port 9002
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import rcp
from sklearn.decomposition import TruncatedSVD
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.preprocessing import normalize
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

from app.demo.demo_document import DemoDocument, Found, Search
from app.demo.document_store import DocumentStore
from app.demo.library import read_library
from app.demo.query_params import DemoQuery
from app.demo.rcp_server import FILTER_OFFER, build_server, retrieve_offer, say, serve_http

NAME = "concepts"
CAPABILITIES = {"retrieve": retrieve_offer("dense", "cosine", max_k=200), "filter": FILTER_OFFER, "citations": {}}
DIMENSIONS = 256
MAX_FEATURES = 12_000
SEED = 20240501
"""Of the SVD and of the pairs that the noise is measured on: the same library gives the same answers everywhere."""
PAIRS = 20_000


class Concepts:
    """A vector per document. Scores are cosines; a document at a right angle or beyond is no answer."""

    def __init__(self, documents: Sequence[DemoDocument]) -> None:
        self.router = DocumentStore(documents)
        self._tfidf = TfidfVectorizer(
            sublinear_tf=True, min_df=2, max_df=0.5, max_features=MAX_FEATURES, stop_words="english"
        )
        self._analyse = self._tfidf.build_analyzer()
        texts = [f"{document.names} {document.text}" for document in documents]
        weights = self._tfidf.fit_transform(texts)
        dimensions = min(DIMENSIONS, *(size - 1 for size in weights.shape))
        self._svd = TruncatedSVD(dimensions, n_iter=2, random_state=SEED)
        with threadpool_limits(1):  # sums in one order on every machine, and no fight with the gateway for the cores
            self._vectors = normalize(self._svd.fit_transform(weights))
        self.noise = self._measure_noise()

    def _measure_noise(self) -> float:
        """The cosine that only one in twenty pairs of documents picked blindly exceeds."""
        pairs = np.random.default_rng(SEED).integers(len(self._vectors), size=(2, PAIRS))
        cosines = np.einsum("ij,ij->i", self._vectors[pairs[0]], self._vectors[pairs[1]])
        return float(np.quantile(cosines, 0.95))

    def search(self, question: DemoQuery) -> Search:
        """The `k` documents nearest to the question that fulfil its `where` and reach its `min_score`; ties by id.

        A confidence is the cosine's way from the noise to 1, times the part of the question that the space can express:
        0 says no nearer than two documents picked blindly, and unknown words make every answer less sure.
        """
        direction, expressed = self._direction(question.text)
        cosines = np.clip(np.round(self._vectors @ direction, 6), -1.0, 1.0)  # rounded, so that equal texts tie
        eligible = (cosines > 0) & (cosines >= (question.min_score or 0.0))
        if question.where is not None:
            allowed = np.zeros(len(cosines), dtype=bool)
            allowed[self.router.places(question.where)] = True
            eligible &= allowed
        places = np.flatnonzero(eligible)
        best = places[np.argsort(-cosines[places], kind="stable")[: question.k]]
        return Search([self._found(int(place), float(cosines[place]), expressed) for place in best], len(places))

    def _direction(self, question: str) -> tuple[Any, float]:
        """The unit vector that `question` points along, and how much of it that vector stands for, in [0, 1].

        Zeros if no word of it is known.
        """
        words = set(self._analyse(question))
        known = sum(word in self._tfidf.vocabulary_ for word in words) / max(len(words), 1)
        vector = self._svd.transform(self._tfidf.transform([question]))[0]
        length = float(np.linalg.norm(vector))
        return vector / (length or 1.0), known * min(length, 1.0)

    def _found(self, place: int, cosine: float, expressed: float) -> Found:
        confidence = max(0.0, (cosine - self.noise) / (1.0 - self.noise)) * expressed
        return Found(self.router.documents[place], cosine, round(confidence, 6))

    def close(self) -> None:
        """Let go of the shelf."""
        self.router.close()

    def __repr__(self) -> str:
        return f"Concepts({len(self.router.documents)} documents, {self._vectors.shape[1]} dimensions)"


def build() -> rcp.Server:
    """Read the library, place its entries in the space of concepts and make the server."""
    documents = read_library(NAME)
    say(NAME, f"fitting vectors to {len(documents)} entries")
    space = Concepts(documents)
    say(NAME, f"{len(documents)} entries in {DIMENSIONS} dimensions")
    return build_server(NAME, CAPABILITIES, space.search)


if __name__ == "__main__":
    serve_http(NAME, build)
