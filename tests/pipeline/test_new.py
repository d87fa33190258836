"""The kernel that `python -m pipeline.new` writes runs at once, and each refusal is one sentence."""

import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from kernel_pipeline import loading, verification
from kernel_pipeline.errors import UserError
from kernel_pipeline.loading import Loaded
from pipeline import new
from pipeline.command.options import NewConfig
from pipeline.points import catalog, templates
from pipeline.points.plan import Target, plan
from tests.planted.tree import ROOT, Tree, cpu_tree
from tests.processes import completed
from tests.project import python

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


def made(folder: Path) -> Loaded:
    """Let the command write a kernel into a folder. Return the kernel."""
    new.run(NewConfig(kernel=str(folder)))
    return catalog.find(str(folder)).loaded


def verify(loaded: Loaded) -> None:
    """Verify every provider except torch.compile, in each dtype and with each value of each parameter."""
    kernel = loaded.kernel
    for provider in kernel.providers:
        if provider.compiled:
            continue
        variables = provider.variables()
        for dtype in kernel.dimensions()["dtype"].values or ():
            problem = kernel.problem(elements=1001, dtype=dtype)
            inputs = loaded.inputs(problem, DEVICE, 0)
            expected = loaded.expected(problem, inputs)
            within = kernel.tolerance(problem)
            defaults = {name: one.default for name, one in variables.items()}
            changed = [{name: value} for name, one in variables.items() for value in one.values or ()]
            for parameters in ({**defaults, **change} for change in changed or [{}]):
                outputs = loaded.entry(provider)(*inputs, **loaded.arguments(problem), **parameters)
                declared = loaded.outputs(problem)
                for out, exact, (shape, kind) in zip(
                    loading.as_tuple(outputs), expected, declared, strict=True
                ):
                    assert (tuple(out.shape), out.dtype) == (shape, kind)
                    torch.testing.assert_close(out.double(), exact, rtol=within.rtol, atol=within.atol)


def test_a_start_is_right_in_every_dtype_and_configuration(tmp_path: Path) -> None:
    loaded = made(tmp_path / "start")
    assert [provider.name for provider in loaded.kernel.providers] == ["torch", "torch_compile", "triton"]
    assert {path.name for path in (tmp_path / "start").glob("*.*")} == {*templates.PURPOSE, "kernel.yaml"}
    verify(loaded)
    inputs = (torch.tensor([float("nan"), -1.0, 2.0], device=DEVICE),)
    out = loaded.entry(loaded.kernel.provider("triton"))(*inputs, block_size=256, num_warps=4)
    torch.testing.assert_close(out.cpu(), torch.tensor([float("nan"), 0.0, 2.0]), equal_nan=True)


def test_a_start_has_points_in_every_preset(tmp_path: Path) -> None:
    made(tmp_path / "presets")
    entry = catalog.find(str(tmp_path / "presets"))
    counts = {preset: len(plan(entry, preset, Target("cuda")).points) for preset in entry.config.presets}
    assert list(counts) == ["smoke", "cpu", "quick", "standard"]
    assert counts["smoke"] == 6
    assert counts["standard"] == 5 * 2 * (2 + 5 * 4)


REFUSED = {
    "Big": "a kernel's name is a lower-case Python identifier",
    "my-kernel": "a kernel's name is a lower-case Python identifier",
    "class": "a kernel's name is a lower-case Python identifier",
    "triton": "triton is the name of a Python module",
    "math": "math is the name of a Python module",
    "softmax": "this repository also has a kernel softmax",
    "problem": "problem is a reserved name in a kernel's files",
    "out": "out is a reserved name in a kernel's files",
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_mistake_is_one_sentence(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError) as error:
        new.run(NewConfig(kernel=f"./{name}"))
    assert REFUSED[name] in str(error.value)
    assert not Path(name).exists()


def test_a_folder_that_cannot_be_written_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match="can't write"):
        new.run(NewConfig(kernel=str(tmp_path / "file" / "my_kernel")))
    files = {tmp_path / "half" / "one.py": "", tmp_path / "file" / "two.py": ""}
    with pytest.raises(UserError, match="can't write"):
        templates.write(files)
    assert not (tmp_path / "half").exists()


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Tree:
    return cpu_tree(tmp_path_factory.mktemp("new"))


@pytest.fixture
def command(tree: Tree) -> Callable[..., subprocess.CompletedProcess[str]]:
    def run(*options: str) -> subprocess.CompletedProcess[str]:
        return python("-m", "pipeline.new", *options, cwd=tree.root)

    return run


Command = Callable[..., subprocess.CompletedProcess[str]]


def swept(tree: Tree, kernel: str) -> set[tuple[str, str]]:
    """Sweep the kernel. Return the status of each provider."""
    done = tree.sweep(f"kernel={kernel}", "provider=[torch,triton]")
    assert done.returncode == 0, done.stderr
    return {(row.point.provider, row.outcome.status) for row in tree.rows(Path(kernel).name)}


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("kernel", ["clean_swept", "../outside/swept_outside"])
def test_it_can_be_swept_at_once(tree: Tree, command: Command, kernel: str) -> None:
    done = command(f"kernel={kernel}")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[-1] == f"Run next: python -m pipeline.sweep kernel={kernel} preset=smoke"
    assert ("params.yaml" in done.stdout) == ("outside" not in kernel)
    if "outside" in kernel:  # test_own_kernel.py sweeps one of the repository
        assert swept(tree, kernel) == {("torch", "ok"), ("triton", "verified")}
    again = command(f"kernel={kernel}")
    assert again.returncode == 2
    assert again.stderr.startswith("error: ")
    assert again.stderr.count("\n") == 1


@pytest.mark.slow
def test_what_is_written_is_clean(tree: Tree, command: Command, tmp_path: Path) -> None:
    assert command("kernel=clean_start").returncode == 0
    settings, cache = str(ROOT / "pyproject.toml"), tmp_path / "cache"
    if (ROOT / ".mypy_cache").is_dir():  # from which mypy knows torch without reading it again
        shutil.copytree(ROOT / ".mypy_cache", cache)
    for check in (
        ["ruff", "check", "--no-cache", "--config", settings, "kernels/clean_start"],
        ["ruff", "format", "--no-cache", "--check", "--config", settings, "kernels/clean_start"],
        ["mypy", "--cache-dir", str(cache), "--config-file", settings, "-p", "kernels.clean_start"],
    ):
        done = completed([sys.executable, "-m", *check], cwd=tree.root)
        assert done.returncode == 0, done.stdout + done.stderr


def test_the_tolerance_tells_gelus_two_forms_apart_and_takes_torchs_own(tmp_path: Path) -> None:
    loaded = made(tmp_path / "start")
    for dtype in loaded.kernel.dimensions()["dtype"].values or ():
        problem = loaded.kernel.problem(elements=1 << 20, dtype=dtype)
        (x,) = loaded.inputs(problem, torch.device("cpu"), 0)
        exact, within = torch.nn.functional.gelu(x.double()), loaded.kernel.tolerance(problem)
        erf, tanh = (torch.nn.functional.gelu(x, approximate=form) for form in ("none", "tanh"))
        assert verification.compare(erf, exact, x.dtype, within).error is None
        assert verification.compare(tanh, exact, x.dtype, within).error is not None


def test_the_next_command_is_one_for_a_shell(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("host dir", "it's", "$(touch gone)", "a;b"):
        folder = tmp_path / name / "mine"
        new.run(NewConfig(kernel=str(folder)))
        line = capsys.readouterr().out.splitlines()[-1]
        assert line.startswith("Run next: python -m pipeline.sweep ")
        words = completed(
            ["sh", "-c", line.removeprefix("Run next: ").replace("python -m", "printf '%s\\n'", 1)],
            check=True,
            cwd=tmp_path,
        ).stdout.splitlines()
        assert words == ["pipeline.sweep", f"kernel={folder}", "preset=smoke"]
