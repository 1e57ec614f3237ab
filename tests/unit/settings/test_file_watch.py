"""Whether files say something else: by content, however they come to say it."""

import os
from pathlib import Path

from app.settings.file_watch import Watch


def test_content_counts(tmp_path: Path) -> None:
    """Other content is a change, once; a new time stamp, or a new file with the same content, is none."""
    file = tmp_path / "f"
    file.write_text("one")
    watch = Watch([file])
    assert not watch.changed()
    os.utime(file, ns=(1, 1))
    assert not watch.changed()
    fresh = tmp_path / "fresh"
    fresh.write_text("one")
    fresh.replace(file)
    assert not watch.changed()
    file.write_text("two!")
    assert watch.changed()
    assert not watch.changed()
    assert repr(watch) == f"<Watch {file}>"


def test_swapped_links_are_followed(tmp_path: Path) -> None:
    """A link to a folder that leads elsewhere is a change, though nothing in the path itself is new."""
    for name in ("v1", "v2"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "f").write_text(name)
    (tmp_path / "data").symlink_to("v1")
    (tmp_path / "f").symlink_to(Path("data") / "f")
    watch = Watch([tmp_path / "f"])
    (tmp_path / "next").symlink_to("v2")
    (tmp_path / "next").replace(tmp_path / "data")
    assert watch.changed()


def test_files_come_and_go(tmp_path: Path) -> None:
    """A file that vanishes is a change, and so is one that appears."""
    file = tmp_path / "f"
    watch = Watch([file])
    file.write_text("here")
    assert watch.changed()
    file.unlink()
    assert watch.changed()
    assert not watch.changed()
