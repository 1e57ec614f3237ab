"""Where documents stand."""

from app.demo.demo_document import DemoDocument
from app.demo.filter_sql import Where
from app.demo.document_store import DocumentStore


def test_a_document_keeps_its_place() -> None:
    """Places are the order in which the documents were given; a missing field matches no value."""
    documents = [DemoDocument(name, "", "", {}, {"module": name} if name != "b" else {}) for name in "abc"]
    shelf = DocumentStore(documents)
    assert shelf.places(Where("module >= ?", ("a",))) == [0, 2]
    assert [shelf.documents[place].id for place in shelf.places(Where("module IS NULL"))] == ["b"]
    assert repr(shelf) == "Shelf(3 documents)"
    shelf.close()
