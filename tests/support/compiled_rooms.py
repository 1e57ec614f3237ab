"""A pytest plugin for running tests against the compiled rooms: `python -m pytest -p tests.support.compiled_rooms …`.

Refuses to run at all where they cannot be used: tests of the sources would look like tests of the compiled modules.
"""

import pytest

from app import compiled

REASON = compiled.adopt()


def pytest_configure(config: pytest.Config) -> None:
    """Before anything is collected."""
    if REASON is not None:
        raise pytest.UsageError(f"the compiled rooms cannot be tested: {REASON}; make compile")


def pytest_report_header(config: pytest.Config) -> str:
    """One line at the top of the report."""
    return f"rooms: {len(compiled.MODULES)} modules compiled, from {compiled.place()}"
