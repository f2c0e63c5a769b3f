"""Runs the tests that use a fixture, and keeps what they note."""

from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parent.parent / "tests"


class Noted:
    """A plug-in of pytest that runs only the tests that use ``fixture``; ``notes``: what these note, one dict each."""

    def __init__(self, fixture: str) -> None:
        self.fixture, self.notes = fixture, []

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items[:] = [item for item in items if self.fixture in item.fixturenames]

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call":
            own = {"held": report.passed, "test": report.nodeid.partition("[")[0]}
            self.notes += [note | own for name, note in report.user_properties if name == self.fixture]
