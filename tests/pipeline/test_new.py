"""What `python -m pipeline.new` writes runs at once, and what it refuses is one sentence."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from kernel_pipeline import loading
from kernel_pipeline.errors import UserError
from kernel_pipeline.loading import Loaded
from pipeline import new
from pipeline.command.options import NewConfig
from pipeline.command.words import for_hydra
from pipeline.execution import verification
from pipeline.points import catalog
from pipeline.points.plan import Target, plan
from tests.planted.tree import ROOT, Tree, cpu_tree
from tests.project import python

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")

FUNCTIONS = '''"""Functions that exist."""
from __future__ import annotations

import torch
import triton
import triton.language as tl

nothing_here = torch.empty(1, device="nowhere")
FACTOR: tl.constexpr = tl.constexpr(1)


@triton.jit
def scaled(x):
    return x * FACTOR


@triton.jit
def add_kernel(x_ptr,  # the first vector
               y_ptr, output_ptr, n_elements,
               BLOCK_SIZE: tl.constexpr):
    pid = tl.program_id(axis=0)
    block_start = pid * BLOCK_SIZE
    offsets = block_start + tl.arange(0, BLOCK_SIZE)
    mask = offsets < n_elements
    x = tl.load(x_ptr + offsets, mask=mask)
    y = tl.load(y_ptr + offsets, mask=mask)
    tl.store(output_ptr + offsets, scaled(x + y), mask=mask)


@triton.jit()
def both(total: tl.tensor, difference, a, b, n: tl.int64, times,
         N: tl.constexpr = 64, FAST: tl.constexpr = True):
    at = tl.program_id(0) * N + tl.arange(0, N)
    total += at
    left = tl.load(a + at, mask=at < n).to(tl.float32)
    right = tl.load(b + at, mask=at < n).to(tl.float32)
    tl.store(total, left + right * times, mask=at < n)
    tl.store(difference + at, left - right, at < n)


@triton.jit
def in_place(x_ptr, n, B: tl.constexpr):
    at = tl.program_id(0) * B + tl.arange(0, B)
    tl.store(x_ptr + at, tl.load(x_ptr + at, mask=at < n), mask=at < n)


@triton.jit
def rows(x_ptr, out_ptr, columns, B: tl.constexpr):
    row = tl.program_id(0)
    column = tl.arange(0, B)
    values = tl.load(x_ptr + row * columns + column, mask=column < columns)
    tl.store(out_ptr + row * columns + column, values, mask=column < columns)


@triton.jit
def strided(x_ptr, out_ptr, n, stride, B: tl.constexpr):
    at = tl.program_id(0) * B + tl.arange(0, B)
    tl.store(out_ptr + at, tl.load(x_ptr + at * stride, mask=at < n), mask=at < n)


@triton.jit
def looping(x_ptr, out_ptr, n, B: tl.constexpr):
    for start in range(0, n, B):
        at = start + tl.arange(0, B)
        tl.store(out_ptr + at, tl.load(x_ptr + at))


@triton.jit
def chosen(x_ptr, out_ptr, n, WAY: tl.constexpr, B: tl.constexpr):
    at = tl.program_id(0) * B + tl.arange(0, B)
    tl.store(out_ptr + at, tl.load(x_ptr + at, mask=at < n) + WAY, mask=at < n)


@triton.jit
def tiles(x_ptr, out_ptr, n, B: tl.constexpr):
    at = tl.program_id(0) * B + tl.program_id(1) * n + tl.arange(0, B)
    tl.store(out_ptr + at, tl.load(x_ptr + at, mask=at < n), mask=at < n)


@triton.jit
def counting(x_ptr, out_ptr, n, B: tl.constexpr):
    at = tl.program_id(0) * B + tl.arange(0, B)
    tl.atomic_add(out_ptr + at, tl.load(x_ptr + at, mask=at < n), mask=at < n)


@triton.autotune(configs=[], key=["n"])
@triton.jit
def tuned(x_ptr, out_ptr, n, B: tl.constexpr):
    at = tl.program_id(0) * B + tl.arange(0, B)
    tl.store(out_ptr + at, tl.load(x_ptr + at, mask=at < n), mask=at < n)


def plain(x):
    return x
'''


@pytest.fixture
def functions(tmp_path: Path) -> Path:
    path = tmp_path / "my-functions.py"
    path.write_text(FUNCTIONS)
    return path


def config(kernel: Path | str, source: str | None = None, reference: str | None = None) -> NewConfig:
    return NewConfig.model_validate({"kernel": str(kernel), "from": source, "reference": reference})


def made(folder: Path, *options: Any) -> Loaded:
    """The kernel that the command writes into a folder."""
    new.run(config(folder, *options))
    return catalog.find(str(folder)).loaded


def verify(loaded: Loaded, **arguments: int) -> None:
    """Every provider but torch.compile, in each dtype and with each value of each parameter."""
    kernel = loaded.kernel
    for provider in kernel.providers:
        if provider.compiled:
            continue
        variables = provider.variables()
        for dtype in kernel.dimensions()["dtype"].values or ():
            problem = kernel.problem(elements=1001, dtype=dtype, **arguments)
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
    assert {path.name for path in (tmp_path / "start").glob("*.*")} == {*new.PURPOSE, "kernel.yaml"}
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


def test_the_common_form_is_wrapped(tmp_path: Path, functions: Path) -> None:
    loaded = made(tmp_path / "added", f"{functions}:add_kernel", "x + y")
    triton = loaded.kernel.provider("triton")
    assert triton.variables()["block_size"].values == (256, 512, 1024, 2048, 4096)
    assert list(triton.variables()) == ["block_size", "num_warps"]
    copied = (tmp_path / "added" / "triton_my_functions.py").read_text()
    assert f"add_kernel of {functions}" in copied
    assert "# the first vector" in copied, "it is as it was written"
    assert "FACTOR: tl.constexpr" in copied
    assert "def scaled" in copied
    assert "both" not in copied
    assert "torch" not in copied
    verify(loaded)


def test_several_outputs_further_numbers_and_constants_are_wrapped(tmp_path: Path, functions: Path) -> None:
    loaded = made(tmp_path / "pair", f"{functions}:both", "a + b * times, a - b")
    assert loaded.kernel.arguments == ("times",)
    found = {name: one.values for name, one in loaded.kernel.provider("triton").variables().items()}
    assert found == {"n": (16, 32, 64, 128, 256), "fast": (False, True), "num_warps": (1, 2, 4, 8)}
    assert loaded.kernel.dimensions()["dtype"].values == ("float32", "bfloat16", "float16")
    verify(loaded)
    work = loaded.kernel.work(loaded.kernel.problem(elements=10))
    assert (work.bytes, work.flops) == (4 * 40, 30)


def test_without_the_right_answer_it_is_asked_for(
    tmp_path: Path, functions: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    loaded = made(tmp_path / "asking", f"{functions}:add_kernel")
    assert "Every point fails until" in capsys.readouterr().out
    problem = loaded.kernel.problem(elements=3)
    with pytest.raises(NotImplementedError, match=r"write what is right into torch\.py"):
        loaded.expected(problem, loaded.inputs(problem, DEVICE, 0))


UNCLEAR = {
    "in_place": "it writes over x_ptr, which it reads",
    "rows": "no program begins at program_id(0) * B",
    "strided": "can't tell what to give for stride",
    "looping": "it loops",
    "chosen": "can't tell what WAY may be: it has no default",
    "tiles": "its programs are not numbered along one dimension",
    "counting": "it writes by tl.atomic_add",
    "tuned": "it is decorated with @triton.autotune",
}


@pytest.mark.parametrize("function", UNCLEAR)
def test_what_the_source_does_not_tell_is_said(tmp_path: Path, functions: Path, function: str) -> None:
    with pytest.raises(UserError) as error:
        new.run(config(tmp_path / "unclear", f"{functions}:{function}"))
    said = str(error.value)
    assert said.startswith(f"from={functions}:{function}: {UNCLEAR[function]}")
    assert said.endswith("Leave out from= and write into triton.py how it is launched.")
    assert not (tmp_path / "unclear").exists()


REFUSED: dict[str, tuple[str | None, str | None, str]] = {
    "Big": (None, None, "a kernel's name is a lower-case Python identifier"),
    "my-kernel": (None, None, "a kernel's name is a lower-case Python identifier"),
    "class": (None, None, "a kernel's name is a lower-case Python identifier"),
    "triton": (None, None, "triton is the name of a Python module"),
    "math": (None, None, "math is the name of a Python module"),
    "softmax": (None, None, "softmax is a kernel of this repository"),
    "problem": (None, None, "its files call something else problem"),
    "out": (None, None, "its files call something else out"),
    "a": ("functions.py", None, "write from=FILE.py:FUNCTION"),
    "b": ("functions.py:nothing", None, "@triton.jit function of"),
    "c": ("functions.py:plain", None, "@triton.jit function of"),
    "d": ("nowhere.py:add_kernel", None, "can't read nowhere.py: No such file"),
    "e": (None, "x + y", "reference= is the right answer of a function that"),
    "f": ("functions.py:add_kernel", "x + z", "there is no z, but torch, x, y"),
    "g": ("functions.py:add_kernel", "x +", "is not a Python expression"),
    "h": ("functions.py:both", "a + b", "write 2 with commas between"),
    "i": ("broken.py:add", None, "broken.py is not Python, line 1"),
    "j": ("importing.py:add", None, "its file imports functions, which lies beside it"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_mistake_is_one_sentence(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("functions.py").write_text(FUNCTIONS)
    Path("broken.py").write_text("def (:")
    Path("importing.py").write_text(
        "import triton\nfrom functions import scaled\n\n"
        "@triton.jit\ndef add(x_ptr, out_ptr, n, B: tl.constexpr):\n"
        "    at = tl.program_id(0) * B + tl.arange(0, B)\n"
        "    tl.store(out_ptr + at, scaled(tl.load(x_ptr + at, mask=at < n)), mask=at < n)\n"
    )
    source, reference, said = REFUSED[name]
    with pytest.raises(UserError) as error:
        new.run(config(f"./{name}", source, reference))
    assert said in str(error.value)
    assert not Path(name).exists()


def test_a_folder_that_cannot_be_written_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match="can't write"):
        new.run(config(tmp_path / "file" / "my_kernel"))
    files = {tmp_path / "half" / "one.py": "", tmp_path / "file" / "two.py": ""}
    with pytest.raises(UserError, match="can't write"):
        new.write(files)
    assert not (tmp_path / "half").exists()


@pytest.mark.parametrize("text", ["x + y", "torch.where(x > 0, x, y)", "x['a'] + 'b'", "x \\ y\\", "a=b"])
def test_an_expression_passes_through_hydra_as_it_is_written(text: str) -> None:
    from hydra.core.override_parser.overrides_parser import OverridesParser

    (word,) = for_hydra([f"reference={text}"], NewConfig)
    assert OverridesParser.create().parse_override(word).value() == text


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
    """The status of each provider after a sweep."""
    done = tree.sweep(f"kernel={kernel}", "provider=[torch,triton]")
    assert done.returncode == 0, done.stderr
    return {(row.point.provider, row.outcome.status) for row in tree.rows(Path(kernel).name)}


# Where a kernel lies and what it is written from have nothing to do with each other.
@pytest.mark.slow
@pytest.mark.parametrize(
    ("kernel", "options"),
    [
        ("clean_swept", []),
        ("../outside/sum_outside", ["from=../functions.py:add_kernel", "reference=x + y"]),
    ],
)
def test_it_is_swept_at_once(tree: Tree, command: Command, kernel: str, options: list[str]) -> None:
    (tree.root.parent / "functions.py").write_text(FUNCTIONS)
    done = command(f"kernel={kernel}", *options)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[-1] == f"Run next: python -m pipeline.sweep kernel={kernel} preset=smoke"
    assert ("params.yaml" in done.stdout) == ("outside" not in kernel)
    assert swept(tree, kernel) == {("torch", "ok"), ("triton", "verified")}
    again = command(f"kernel={kernel}", *options)
    assert again.returncode == 2
    assert again.stderr.startswith("error: ")
    assert again.stderr.count("\n") == 1


WRITTEN = {
    "clean_start": [],
    "clean_added": ["from=../functions.py:add_kernel", "reference=x + y"],
    "clean_pair_of_a_long_name": ["from=../functions.py:both", "reference=a + b * times, a - b"],
    "clean_unwritten": ["from=../functions.py:both"],
}


@pytest.mark.slow
def test_what_is_written_is_clean(tree: Tree, command: Command, tmp_path: Path) -> None:
    (tree.root.parent / "functions.py").write_text(FUNCTIONS)
    for name, options in WRITTEN.items():
        assert command(f"kernel={name}", *options).returncode == 0
    folders = [f"kernels/{name}" for name in WRITTEN]
    packages = [word for name in WRITTEN for word in ("-p", f"kernels.{name}")]
    settings = str(ROOT / "pyproject.toml")
    for check in (
        ["ruff", "check", "--no-cache", "--config", settings, *folders],
        ["ruff", "format", "--no-cache", "--check", "--config", settings, *folders],
        ["mypy", "--cache-dir", str(tmp_path), "--config-file", settings, *packages],
    ):
        done = python("-m", *check, cwd=tree.root)
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
        new.run(config(folder))
        line = capsys.readouterr().out.splitlines()[-1]
        assert line.startswith("Run next: python -m pipeline.sweep ")
        words = subprocess.run(
            ["sh", "-c", line.removeprefix("Run next: ").replace("python -m", "printf '%s\\n'", 1)],
            capture_output=True,
            text=True,
            check=True,
            cwd=tmp_path,
        ).stdout.splitlines()
        assert words == ["pipeline.sweep", f"kernel={folder}", "preset=smoke"]
