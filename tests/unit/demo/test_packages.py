"""Installed distributions as documents."""

from importlib.metadata import PathDistribution, distributions
from pathlib import Path

import pytest

from app.demo.packages import plain, read_packages


def installed(folder: Path, name: str, metadata: str) -> PathDistribution:
    """A distribution with this METADATA file."""
    path = folder / f"{name}.dist-info"
    path.mkdir(parents=True)
    (path / "METADATA").write_text(metadata, encoding="utf-8")
    return PathDistribution(path)


def test_name_summary_and_description_are_kept(tmp_path: Path) -> None:
    """The id is the normalised name, the citation names version and home."""
    metadata = (
        "Metadata-Version: 2.1\nName: Time_Machine\nVersion: 1.2\nSummary: Travel in time\n"
        "Project-URL: Changes, https://x.example/changes\nProject-URL: Homepage, https://x.example\n"
        "\n# Time\n\nGo back.\n"
    )
    (document,) = read_packages([installed(tmp_path, "time_machine", metadata)])
    assert (document.id, document.names) == ("time-machine", "Time Machine")
    assert document.text == "Travel in time\n\nTime\n\nGo back."
    assert document.meta == {"version": "1.2"}
    assert document.citation == {
        "source": "installed distributions",
        "title": "Time_Machine 1.2",
        "uri": "https://x.example",
    }


def test_a_sparse_description_is_enough(tmp_path: Path) -> None:
    """A name alone makes a document, the first of that name on the path; only web addresses are cited."""
    bare = "Metadata-Version: 2.1\nName: bare\nVersion: 1\nHome-page: UNKNOWN\n"
    found = read_packages(
        [
            installed(tmp_path / "first", "bare", bare),
            installed(tmp_path / "second", "bare", bare.replace("Version: 1", "Version: 2")),
            installed(tmp_path, "nameless", "Metadata-Version: 2.1\nVersion: 1\n"),
        ]
    )
    assert [(document.id, document.text, document.meta) for document in found] == [("bare", "bare", {"version": "1"})]
    assert "uri" not in found[0].citation


@pytest.mark.parametrize(
    ("markup", "text"),
    [
        ("[![Badge](https://x/b.svg)](https://x) Words", "Words"),
        ("See [the docs](https://x) and [more][1].\n\n[1]: https://x", "See the docs and more."),
        ("<p align=center>\n<b>Bold</b></p> 1 < 2", "Bold 1 < 2"),
        ("Title\n=====\nText", "Title Text"),
        (".. image:: x.png\n   :alt: x\nSee `the docs <https://x>`_ and `this`_.", "See the docs and this."),
    ],
)
def test_markup_is_read_as_words(markup: str, text: str) -> None:
    """Badges, tags, targets and underlines are no text to search or show."""
    assert plain(markup).split() == text.split()


def test_what_is_installed_here_can_be_read() -> None:
    """Every distribution beside the gateway becomes a document, whatever its metadata looks like; itself it is not."""
    documents = {document.id: document for document in read_packages(distributions())}
    assert "pytest" in documents["pytest"].text
    assert "rcp-gateway" not in documents
    assert len(documents["fastapi"].text) <= 2000
