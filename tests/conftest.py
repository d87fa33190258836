"""Shared fixtures. Without a GPU, Triton runs under its interpreter and Numba under its simulator; both
must be chosen before a kernel is imported."""

from __future__ import annotations

import fcntl
import gc
import os
import shutil
import signal
from pathlib import Path
from types import FunctionType
from typing import TYPE_CHECKING

import hypothesis
import pytest
import torch

from kernel_pipeline.machine import torch_install
from kernel_pipeline.machine.lock import runtime_folder
from kernel_pipeline.machine.reaper import INTERPRETERS
from tests import grouped_names

if TYPE_CHECKING:
    from tests.project import Project

torch_install.resolve_vector_math()

if not torch.cuda.is_available():
    os.environ.update(INTERPRETERS)


# All test processes share what Inductor builds for its C++, although each may have its own TMPDIR.
os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(runtime_folder() / "inductor"))

# A background job of a script ignores SIGINT and a child of nohup ignores SIGHUP. The commands that the tests
# start and stop would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


# On a busy machine an example takes longer than Hypothesis's default deadline.
hypothesis.settings.register_profile("without a clock", deadline=None)
hypothesis.settings.load_profile("without a clock")


def pytest_configure(config: pytest.Config) -> None:
    """Let processes share a GPU, and silence NumPy's warnings. The interpreter and the simulator compute
    with NumPy, and the tests use infinities and NaN."""
    config.pluginmanager.register(grouped_names)
    if torch.cuda.is_available():
        from tests import gpu_sharing

        config.pluginmanager.register(gpu_sharing)
    else:
        replace_the_language_once()
    for module in (r"triton.runtime.interpreter", r"kernels\.\w+\.numba", r"numba\.cuda\.simulator"):
        config.addinivalue_line("filterwarnings", f"ignore::RuntimeWarning:{module}")


def replace_the_language_once() -> None:
    """Let Triton's interpreter replace its language's functions once a launch, and not at each call of a
    function within a kernel, too, which takes a third of the kernels' tests."""
    from triton import language
    from triton.runtime import interpreter

    replace, replaced = interpreter._patch_lang, set[object]()

    def replace_once(function: FunctionType) -> object:
        seen = {one for one in function.__globals__.values() if one is language or one is language.core}
        if seen and seen <= replaced:
            return interpreter._LangPatchScope()
        is_launch, scope = not replaced, replace(function)
        replaced.update(seen)
        if is_launch:
            put_back = scope.restore

            def end() -> None:
                put_back()
                replaced.clear()

            scope.restore = end
        return scope

    interpreter._patch_lang = replace_once


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the longest tests first, so that parallel processes end at about the same time: tests that leave
    ``project`` unchanged, then its other tests, and last the many short tests of the kernels."""
    order = {"test_remote.py": 0, "test_end_to_end.py": 1, "test_compile.py": 2}
    items.sort(key=lambda item: order.get(item.path.name, 4 if item.path.parent.name == "kernels" else 3))


def pytest_collection_finish() -> None:
    """Freeze what was imported and collected, so that Python's garbage collector does not scan it again."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def empty_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of an MLflow store without runs. MLflow takes seconds to create its tables, so
    pytest-xdist's processes share it."""
    from pipeline.tracking.store import opened

    shared = tmp_path_factory.getbasetemp()
    shared = shared.parent if "PYTEST_XDIST_WORKER" in os.environ else shared
    with (shared / "empty-store.lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (shared / "empty-store").is_dir():
            made = tmp_path_factory.mktemp("store")
            with opened(f"sqlite:///{made / 'mlflow.db'}"):
                pass
            shutil.copytree(made, shared / "empty-store")
    return shared / "empty-store"


@pytest.fixture
def database(tmp_path: Path, empty_store: Path) -> Path:
    """Return a copy of the empty MLflow store for one test."""
    return shutil.copytree(empty_store, tmp_path / "store") / "mlflow.db"


@pytest.fixture(scope="session")
def project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """Return a repository in which the pipeline has run once, beside results of an H200, with everything
    committed. A test that uses it belongs to the xdist group ``end-to-end``."""
    from pipeline import report
    from pipeline.command.options import ReportConfig
    from tests import factory
    from tests.project import KERNELS, STAGES, Project

    made = Project(tmp_path_factory.mktemp("end-to-end"))
    made.create(*KERNELS)
    made.measure_less()
    h200 = factory.grid(kernels=["square"], gpus=[factory.H200], providers=["torch_square", "cuda"])
    factory.write_results(made.root / "results", h200)
    report.run(ReportConfig(input=made.root / "results", output=made.root / "reports", device="cpu"))
    made.commit("An H200's results")
    made.adopt_builds()
    stages = made.repro()
    assert stages == list(STAGES), "nothing that measures waits for the report of what was built"
    status = made.run("git", "status", "--porcelain", "--untracked-files=all").stdout
    touched = {line[3:] for line in status.splitlines()}
    own = ("results/", "reports/") if not made.gpu().startswith("cpu-") else ()
    strange = {name for name in touched if name != "dvc.lock" and not name.startswith(own or "\0")}
    assert not strange, "a run leaves nothing to commit but dvc.lock and what GPUs gave"
    rows = [row for kernel in made.kernels() for row in made.rows(kernel).values()]
    assert {row.outcome.unkeyed for row in rows} == {None}, "the keys hold all that these kernels read"
    made.commit("Results")
    return made
