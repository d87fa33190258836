"""How the tests that need a GPU share one among pytest-xdist's processes.

Most run side by side: a process waits for a compiler far longer than for the GPU. Two kinds do not:

- A test marked ``alone`` times something, or judges by times. It begins when no other runs, and none begins
  before it ends. All of them are one xdist group, the last in the queue.
- What needs many GiB is in ``much_memory()``, which one process is in at a time.

The first case of each test and provider is ``smoke`` besides, unless it is ``alone`` or ``long``.
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
"""Of freed memory, which torch keeps for the process's next tensors: other processes need it, too."""

MARKERS = (
    "alone: has the GPU to itself, for it times something",
    "builds: needs a kernel's CUDA library",
    "long: takes most of a minute, too long for a smoke test",
    "smoke: the first case of a test and provider",
)

FOLDER = pytest.StashKey[Path]()
_folder: Path | None = None
"""Where the processes' locks lie; None in a process that shares the GPU with none."""


def pytest_configure(config: pytest.Config) -> None:
    """Know the marks, and have a folder for locks if there are several processes."""
    global _folder  # noqa: PLW0603  # a test's context manager knows no configuration
    for marker in MARKERS:
        config.addinivalue_line("markers", marker)
    worker = getattr(config, "workerinput", None)
    if worker is not None:
        _folder = Path(worker["gpu_locks"])
        # A pool of compilers for each process would be more processes than cores.
        os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")
        torch.set_num_threads(1)
    elif getattr(config.option, "numprocesses", None):
        config.stash[FOLDER] = Path(tempfile.mkdtemp(prefix="gpu-tests-"))


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Tell a process of pytest-xdist where the locks lie."""
    node.workerinput["gpu_locks"] = str(node.config.stash[FOLDER])


def pytest_unconfigure(config: pytest.Config) -> None:
    """Remove the locks."""
    if FOLDER in config.stash:
        shutil.rmtree(config.stash[FOLDER], ignore_errors=True)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Choose the smoke tests; order the others so that no library is waited for while there is other work."""
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
    """The test, and the kernel and provider that it is about."""
    parameters = _parameters(item)
    case = parameters.get("case")
    provider = getattr(case, "provider", parameters.get("provider"))
    kernel = getattr(case, "loaded", parameters.get("loaded", parameters.get("name")))
    test = item.nodeid.partition("[")[0]
    return test, *(str(getattr(one, "name", one)) for one in (kernel, provider))


def _provider(item: pytest.Item) -> Any:
    return getattr(_parameters(item).get("case"), "provider", None)


def _is_long(item: pytest.Item) -> bool:
    """Whether it takes most of a minute, as torch's autotuning does."""
    return bool(item.get_closest_marker("long")) or "autotune" in getattr(_provider(item), "name", "")


def _rank(item: pytest.Item) -> int:
    if not item.get_closest_marker("gpu"):
        return 0
    if item.get_closest_marker("alone"):
        return 5
    if _is_long(item):
        return 1  # in one process each, while the others have their work
    if item.get_closest_marker("builds"):
        return 4
    return 3 if getattr(_provider(item), "extension", None) else 2


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Run a test beside others or alone, and leave the GPU's memory to them."""
    if not item.get_closest_marker("gpu"):
        return (yield)
    with _locked("all", fcntl.LOCK_EX if item.get_closest_marker("alone") else fcntl.LOCK_SH):
        found = yield
    if torch.cuda.memory_reserved() > KEPT_BYTES:
        torch.cuda.empty_cache()
    return found


@contextmanager
def much_memory() -> Iterator[None]:
    """Need many GiB of the GPU's memory while no other process does, and leave none of them allocated."""
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
