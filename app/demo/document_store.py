"""The documents of a demo engine in an in-memory SQLite database, with columns for filters."""

import sqlite3
from collections.abc import Sequence

from app.demo.demo_document import FIELDS, DemoDocument
from app.demo.filter_sql import Where


class DocumentStore:
    """Documents in a fixed order; a document's place in it is its row in every table."""

    def __init__(self, documents: Sequence[DemoDocument]) -> None:
        self.documents = documents
        self.database = sqlite3.connect(":memory:")
        self.database.execute(f"CREATE TABLE shelf (place INTEGER PRIMARY KEY, {', '.join(FIELDS)})")
        self.database.executemany(
            f"INSERT INTO shelf VALUES ({', '.join('?' * (1 + len(FIELDS)))})",
            ((place, *map(document.meta.get, FIELDS)) for place, document in enumerate(documents)),
        )

    def places(self, where: Where) -> list[int]:
        """Where the documents stand that fulfil `where`, ascending."""
        rows = self.database.execute(f"SELECT place FROM shelf WHERE {where.sql} ORDER BY place", where.values)
        return [place for (place,) in rows]

    def close(self) -> None:
        """Let go of the database."""
        self.database.close()

    def __repr__(self) -> str:
        return f"Shelf({len(self.documents)} documents)"
