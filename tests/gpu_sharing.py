"""Share one GPU among the tests of several pytest-xdist processes.

Most tests run side by side, because a process waits far longer for a compiler than for the GPU. Two kinds do
not:

- A test marked ``alone`` times something or depends on times. It runs while no other GPU test runs. All of
  these tests are in one xdist group, the last in the queue.
- Code that needs many GiB runs in ``much_memory()``, which admits one process at a time.

A failure is printed when it happens. The first case of each test and provider is also marked ``smoke``,
unless it is ``alone`` or ``long``.
"""

from __future__ import annotations

import fcntl
import gc
import os
import shutil
import tempfile
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

KEPT_BYTES = 2**29
"""The freed memory that torch may keep for the process's next tensors. Other processes need the rest."""

MARKERS = (
    "alone: has the GPU to itself, for it times something",
    "builds: needs a kernel's CUDA library",
    "long: takes most of a minute, too long for a smoke test",
    "smoke: the first case of a test and provider",
)

FOLDER = pytest.StashKey[Path]()
_folder: Path | None = None
"""The folder of the processes' locks; None if only one process uses the GPU."""


def pytest_configure(config: pytest.Config) -> None:
    """Register the marks. With several processes, also create the folder for their locks."""
    global _folder  # noqa: PLW0603  # much_memory() has no access to pytest's configuration
    for marker in MARKERS:
        config.addinivalue_line("markers", marker)
    worker = getattr(config, "workerinput", None)
    if worker is not None:
        _folder = Path(worker["gpu_locks"])
        # One pool of compilers per process would start more processes than there are cores.
        os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")
        torch.set_num_threads(1)
    elif getattr(config.option, "numprocesses", None):
        config.stash[FOLDER] = Path(tempfile.mkdtemp(prefix="gpu-tests-"))


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Tell a pytest-xdist process where the locks are."""
    node.workerinput["gpu_locks"] = str(node.config.stash[FOLDER])


def pytest_unconfigure(config: pytest.Config) -> None:
    """Remove the locks."""
    if FOLDER in config.stash:
        shutil.rmtree(config.stash[FOLDER], ignore_errors=True)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the smoke tests. Order the others so that no test waits for a library while there is other
    work."""
    seen = set()
    for item in (item for item in items if item.get_closest_marker("gpu")):
        if item.get_closest_marker("alone"):
            item.add_marker(pytest.mark.xdist_group("alone"))
        elif not _is_long(item) and (one := _about(item)) not in seen:
            seen.add(one)
            item.add_marker("smoke")
    items.sort(key=_rank)


def _parameters(item: pytest.Item) -> dict[str, Any]:
    return getattr(getattr(item, "callspec", None), "params", {})


def _about(item: pytest.Item) -> tuple[str, ...]:
    """Return the test's id, its kernel and its provider."""
    parameters = _parameters(item)
    case = parameters.get("case")
    provider = getattr(case, "provider", parameters.get("provider"))
    kernel = getattr(case, "loaded", parameters.get("loaded", parameters.get("name")))
    test = item.nodeid.partition("[")[0]
    return test, *(str(getattr(one, "name", one)) for one in (kernel, provider))


def _provider(item: pytest.Item) -> Any:
    return getattr(_parameters(item).get("case"), "provider", None)


def _is_long(item: pytest.Item) -> bool:
    """Return whether a test takes most of a minute, as torch's autotuning does."""
    return bool(item.get_closest_marker("long")) or "autotune" in getattr(_provider(item), "name", "")


def _rank(item: pytest.Item) -> int:
    if not item.get_closest_marker("gpu"):
        return 0
    if item.get_closest_marker("alone"):
        return 5
    if _is_long(item):
        return 1  # in one process each, while the other processes run other tests
    if item.get_closest_marker("builds"):
        return 4
    return 3 if getattr(_provider(item), "extension", None) else 2


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Run a GPU test beside others or alone, then free its GPU memory for the others."""
    if not item.get_closest_marker("gpu"):
        return (yield)
    with _locked("all", fcntl.LOCK_EX if item.get_closest_marker("alone") else fcntl.LOCK_SH):
        found = yield
    if torch.cuda.memory_reserved() > KEPT_BYTES:
        torch.cuda.empty_cache()
    return found


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Print a failure when it happens: the tests take minutes, and may be stopped before pytest's summary."""
    if report.failed and "PYTEST_XDIST_WORKER" not in os.environ:
        crash = getattr(report.longrepr, "reprcrash", None)
        reason = report.longreprtext if crash is None else crash.message
        print(f"\nFAILED {report.nodeid} after {report.duration:.0f} s: {reason[:200]}", flush=True)


@contextmanager
def much_memory() -> Iterator[None]:
    """Run code that needs many GiB of GPU memory while no other process does, then free that memory."""
    with _locked("memory", fcntl.LOCK_EX):
        try:
            yield
        finally:
            gc.collect()
            torch.cuda.empty_cache()


@contextmanager
def _locked(name: str, kind: int) -> Iterator[None]:
    if _folder is None:
        yield
        return
    with (_folder / name).open("a") as file:
        fcntl.flock(file, kind)
        yield
