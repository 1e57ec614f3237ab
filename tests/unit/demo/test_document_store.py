"""Where documents stand."""

from app.demo.demo_document import DemoDocument
from app.demo.document_store import DocumentStore
from app.demo.filter_sql import Where


def test_a_document_keeps_its_place() -> None:
    """Places are the order in which the documents were given; a missing field matches no value."""
    documents = [DemoDocument(name, "", "", {}, {"module": name} if name != "b" else {}) for name in "abc"]
    router = DocumentStore(documents)
    assert router.places(Where("module >= ?", ("a",))) == [0, 2]
    assert [router.documents[place].id for place in router.places(Where("module IS NULL"))] == ["b"]
    assert repr(router) == "Shelf(3 documents)"
    router.close()
