"""The library and the kernels, installed by ``pip install .`` without the pipeline."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

LIBRARY = "kernel_pipeline"

BUILT = ("pyproject.toml", "setup.py", "README.md", "LICENSE")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build a wheel without a package index, from a copy of the tree that contains a tuned table."""
    folder = tmp_path_factory.mktemp("wheel")
    (source := folder / "source").mkdir()
    for name in BUILT:
        shutil.copy(ROOT / name, source)
    for name in ("kernels", "kernel_pipeline", "pipeline"):
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    (source / "results" / "tuned").mkdir(parents=True)
    (source / "results" / "tuned" / "some-gpu.json").write_text("{}")
    (source / "build" / "lib" / "stale").mkdir(parents=True)
    (source / "build" / "lib" / "stale" / "__init__.py").touch()
    options = ("--no-deps", "--no-build-isolation", "--no-index", "--quiet")
    subprocess.run(
        [sys.executable, "-m", "pip", "wheel", ".", *options, "--wheel-dir", folder], cwd=source, check=True
    )
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def site(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the wheel's files, as pip installs them, and another project's package named
    kernels."""
    site = tmp_path_factory.mktemp("site")
    with zipfile.ZipFile(wheel) as packed:
        packed.extractall(site)
    (site / "kernels").mkdir()
    (site / "kernels" / "__init__.py").write_text("raise ImportError('another project')\n")
    return site


def run(site: Path, program: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a program with the wheel and torch installed, but without the packages that only the pipeline
    needs."""
    blocked = "dvc, hydra, mlflow, pipeline, pydantic, yaml, omegaconf, pandas, ninja, scipy"
    before = f"import sys\nfor name in '{blocked}'.split(', '): sys.modules[name] = None\n"
    return subprocess.run(
        [sys.executable, "-c", before + program],
        cwd=site,
        env={name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
        | {"PYTHONPATH": str(site)}
        | environment,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.slow
@pytest.mark.xdist_group("wheel")
def test_a_wheel_holds_the_kernels_under_their_own_name(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as packed:
        names = set(packed.namelist())
        told = packed.read(next(name for name in names if name.endswith("/METADATA"))).decode()
    assert {name.partition("/")[0] for name in names} == {
        "kernel_pipeline",
        "kernel_pipeline-0.1.0.dist-info",
    }
    sources = {
        f"{package}/{path.relative_to(ROOT / folder).as_posix()}"
        for folder, package in (("kernel_pipeline", LIBRARY), ("kernels", f"{LIBRARY}/kernels"))
        for path in (ROOT / folder).rglob("*")
        if path.suffix in (".py", ".cu", ".cpp", ".cuh", ".h")
    }
    assert names >= sources | {"kernel_pipeline/tuned/some-gpu.json"}
    needed = [line for line in told.splitlines() if line.startswith("Requires-Dist:") and "extra" not in line]
    assert needed == [
        "Requires-Dist: msgspec>=0.20",
        "Requires-Dist: nvidia-ml-py>=12.560",
        "Requires-Dist: torch>=2.11",
        "Requires-Dist: triton>=3.6",
    ]


CALLS = """
import json, pickle, torch
from kernel_pipeline.ops import layernorm, softmax, untuned, warm
import kernel_pipeline.ops as ops
x = torch.randn(3, 4, 6)
assert (softmax(x) - torch.softmax(x, -1)).abs().max() < 1e-6
compiled = torch.compile(softmax, fullgraph=True, backend="aot_eager")
assert (compiled(x) - torch.softmax(x, -1)).abs().max() < 1e-6
y = torch.randn(4, 6, requires_grad=True)
layernorm(y, torch.ones(6), torch.zeros(6)).sum().backward()
assert pickle.loads(pickle.dumps(softmax)) is softmax and softmax.__module__ == "kernel_pipeline.ops"
strange = [name for name in sys.modules if name.partition(".")[0] == "kernels"]
print(json.dumps({"names": ops.names(), "strange": strange, "asked": len(untuned())}))
"""


@pytest.mark.slow
@pytest.mark.xdist_group("wheel")
def test_an_installation_calls_the_kernels_without_the_pipeline(site: Path) -> None:
    from kernel_pipeline import ops

    done = run(site, CALLS)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {"names": ops.names(), "strange": [], "asked": 2}


PROVIDERS = """
import torch
from kernel_pipeline.loading import load
from kernel_pipeline.ops import native, plans
from kernel_pipeline.ops.tuned import Choice
loaded, x = load("softmax"), torch.randn(4, 6)
problem = loaded.kernel.problem(rows=4, columns=6)
for choice in (Choice("triton_row", {"num_warps": 4}, "exact", ""), Choice("cpp", {}, "exact", "")):
    entry = plans.ready(loaded, problem, choice, x.device)
    assert (entry(x, **choice.parameters) - torch.softmax(x, -1)).abs().max() < 1e-6
print(native.library(loaded, "cpp.cpp").relative_to(native.cache()).parts[::2])
"""


@pytest.mark.slow
@pytest.mark.xdist_group("wheel")
def test_an_installation_builds_and_runs_providers(site: Path, tmp_path: Path) -> None:
    environment = {"TRITON_INTERPRET": "1", "KERNELS_CACHE": str(tmp_path)}
    for _ in range(2):
        done = run(site, PROVIDERS, **environment)
        assert (done.returncode, done.stdout) == (0, "('softmax', 'cpp.so')\n"), done.stderr
    assert len(list(tmp_path.rglob("*.so"))) == 1


@pytest.mark.slow
@pytest.mark.xdist_group("wheel")
def test_the_console_script_of_an_installation_says_what_is_there(site: Path) -> None:
    entry = (site / "kernel_pipeline-0.1.0.dist-info" / "entry_points.txt").read_text()
    assert "kernel-pipeline = kernel_pipeline.__main__:main" in entry
    done = run(site, "from kernel_pipeline.__main__ import main; main()")
    assert done.returncode == 2 and done.stdout == ""
    assert done.stderr.startswith("error: the pipeline's other commands need a checkout of the repository")
    assert done.stderr.count("\n") == 1


LISTED = re.compile(r"```python\n(.*?)```", re.DOTALL)


@pytest.mark.slow
@pytest.mark.xdist_group("wheel")
def test_the_examples_of_the_librarys_page_run_word_for_word(site: Path, tmp_path: Path) -> None:
    *examples, test = LISTED.findall((ROOT / "docs" / "library.md").read_text())
    assert len(examples) == 5 and "kernel_bench" in test
    without_scipy = [example for example in examples if "import compare" not in example]
    done = run(site, "\n".join(without_scipy), XDG_CACHE_HOME=str(tmp_path))
    assert done.returncode == 0 and done.stdout.startswith("softmax: "), done.stderr
    compared = run(site, "\n".join(examples[:4]), XDG_CACHE_HOME=str(tmp_path))
    assert "ImportError: verdicts need SciPy: pip install 'kernel-pipeline[compare]'." in compared.stderr
    assert "pytest11" in (site / "kernel_pipeline-0.1.0.dist-info" / "entry_points.txt").read_text()
    assert (site / "kernel_pipeline" / "py.typed").exists()
