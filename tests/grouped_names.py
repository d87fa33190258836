"""The names of tests in groups of pytest-xdist: a plugin of tests/conftest.py that imports no torch."""

import os

import pytest


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Remove the group that pytest-xdist's processes add to a test's name, with which ``--last-failed`` would
    not find it."""
    name, at, group = report.nodeid.rpartition("@")
    if "PYTEST_XDIST_WORKER" not in os.environ and at and "]" not in group:
        report.nodeid = name
