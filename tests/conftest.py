"""Where there is no GPU, Triton runs under its interpreter and Numba under its simulator, which must be
chosen before a kernel's import."""

from __future__ import annotations

import fcntl
import gc
import os
import shutil
import signal
from pathlib import Path
from typing import TYPE_CHECKING

import hypothesis
import pytest
import torch

from kernel_pipeline.machine import torch_install
from kernel_pipeline.machine.lock import runtime_folder
from kernel_pipeline.machine.reaper import INTERPRETERS

if TYPE_CHECKING:
    from tests.project import Project

torch_install.resolve_vector_math()

if not torch.cuda.is_available():
    os.environ.update(INTERPRETERS)


# What Inductor's C++ needs is built once for all processes, whatever their folder for temporary files.
os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(runtime_folder() / "inductor"))

# A script's background job ignores Ctrl-C and one of nohup a hang-up, and so would the commands that are
# started and stopped here.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


# A busy machine takes longer for an example than Hypothesis likes.
hypothesis.settings.register_profile("without a clock", deadline=None)
hypothesis.settings.load_profile("without a clock")


def pytest_configure(config: pytest.Config) -> None:
    """Share a GPU among processes; let NumPy, in which interpreter and simulator compute, not warn of the
    infinities and NaN that the tests ask for."""
    if torch.cuda.is_available():
        from tests import gpu_sharing

        config.pluginmanager.register(gpu_sharing)
    for module in (r"triton.runtime.interpreter", r"kernels\.\w+\.numba", r"numba\.cuda\.simulator"):
        config.addinivalue_line("filterwarnings", f"ignore::RuntimeWarning:{module}")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The longest first and the shortest last, so that several processes end at about the same time: those
    that need ``project``, and of them those that leave it as it is; at the end the kernels' many, of which
    none takes long."""
    order = {"test_remote.py": 0, "test_end_to_end.py": 1, "test_compile.py": 2}
    items.sort(key=lambda item: order.get(item.path.name, 4 if item.path.parent.name == "kernels" else 3))


def pytest_collection_finish() -> None:
    """What was imported and collected stays to the end: Python's collector need not look through it again."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def empty_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of an MLflow store without runs, shared by pytest-xdist's processes: MLflow takes seconds to
    make its tables."""
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
    """An MLflow store of the test's own, without runs."""
    return shutil.copytree(empty_store, tmp_path / "store") / "mlflow.db"


@pytest.fixture(scope="session")
def project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """A repository in which the pipeline has run once beside an H200's results, all of it committed. Whoever
    takes it belongs to the xdist group ``end-to-end``."""
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
