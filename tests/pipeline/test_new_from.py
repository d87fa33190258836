"""``new from=FILE`` takes launchers as people write them, and Triton's interpreter verifies the kernel."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from kernel_pipeline.errors import UserError
from kernel_pipeline.execution.supervisor import Supervisor
from kernel_pipeline.machine import device
from kernel_pipeline.records.base import Values
from kernel_pipeline.records.measurement import Outcome
from kernel_pipeline.records.point import Point
from kernel_pipeline.records.settings import TimingSettings
from pipeline import new
from pipeline.command.options import NewConfig
from pipeline.points import catalog
from tests.project import python

HEAD = """import torch
import triton
import triton.language as tl

"""

SOFTMAX = (
    HEAD
    + """
DEVICE = triton.runtime.driver.active.get_active_torch_device()
PROGRAMS = torch.cuda.get_device_properties("cuda").multi_processor_count


@triton.jit
def _rows(out, x, rows, columns, stride, BLOCK: tl.constexpr):
    offset = tl.arange(0, BLOCK)
    for row in range(tl.program_id(0), rows, tl.num_programs(0)):
        value = tl.load(x + row * stride + offset, mask=offset < columns, other=-float("inf"))
        top = tl.exp(value - tl.max(value, axis=0))
        tl.store(out + row * stride + offset, top / tl.sum(top, axis=0), mask=offset < columns)


def softmax(x):
    assert x.is_cuda and x.device.type == DEVICE.type
    out = torch.empty(x.shape, device="cuda", dtype=x.dtype)
    grid = (min(PROGRAMS, x.shape[0]),)
    _rows[grid](out, x, x.shape[0], x.shape[1], x.stride(0), BLOCK=triton.next_power_of_2(x.shape[1]))
    return out


torch.manual_seed(0)
given = torch.randn(1823, 781, device=DEVICE)
assert torch.allclose(softmax(given), torch.softmax(given, axis=1))


def benchmark(size):
    return softmax(torch.randn(size, size, device="cuda"))


print(benchmark(128))
"""
)

MATMUL = (
    HEAD
    + """
def configurations():
    return [triton.Config({"M": 64, "N": 64, "K": 64}), triton.Config({"M": 128, "N": 128, "K": 32})]


@triton.jit
def leaky(x):
    return tl.where(x >= 0, x, 0.01 * x)


@triton.autotune(configs=configurations(), key=["k"])
@triton.jit
def _tiles(a, b, c, m, n, k, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr, ACTIVATION: tl.constexpr):
    rows, columns = tl.program_id(0) * M + tl.arange(0, M), tl.program_id(1) * N + tl.arange(0, N)
    total = tl.zeros((M, N), dtype=tl.float32)
    for start in range(0, k, K):
        inner = start + tl.arange(0, K)
        left = tl.load(a + rows[:, None] * k + inner, mask=(rows[:, None] < m) & (inner < k), other=0.0)
        is_right = (inner[:, None] < k) & (columns < n)
        right = tl.load(b + inner[:, None] * n + columns, mask=is_right, other=0.0)
        total += tl.dot(left, right)
    if ACTIVATION == "leaky":
        total = leaky(total)
    inside = (rows[:, None] < m) & (columns < n)
    tl.store(c + rows[:, None] * n + columns, total.to(tl.float16), mask=inside)


def matmul(a, b, activation=""):
    assert a.shape[1] == b.shape[0], "inner sizes differ"
    (m, k), n = a.shape, b.shape[1]
    c = torch.empty((m, n), device=a.device, dtype=torch.float16)
    _tiles[lambda meta: (triton.cdiv(m, meta["M"]), triton.cdiv(n, meta["N"]))](
        a, b, c, m, n, k, ACTIVATION=activation
    )
    return c
"""
)

UTILS = """import functools

import torch
import transformers_that_nobody_has


def settings(columns):
    return {"BLOCK": block(columns), "num_warps": 4}


def block(columns):
    return triton.next_power_of_2(columns)


import triton


def contiguous(function):
    @functools.wraps(function)
    def call(ctx, *arguments):
        return function(ctx, *(one.contiguous() if torch.is_tensor(one) else one for one in arguments))

    return call
"""

NORM = '''"""A layer norm with its gradient."""

from typing import Optional

import torch
import triton
import triton.language as tl
from triton.language.extra.libdevice import rsqrt

from acme.common import contiguous as dense

from ..common import settings


@triton.jit
def _forward(out, x, w, b, mean, rstd, columns, eps, BLOCK: tl.constexpr):
    row, offset = tl.program_id(0), tl.arange(0, BLOCK)
    inside = offset < columns
    value = tl.load(x + row * columns + offset, mask=inside, other=0.0).to(tl.float32)
    center = tl.sum(value, axis=0) / columns
    value = tl.where(inside, value - center, 0.0)
    scale = rsqrt(tl.sum(value * value, axis=0) / columns + eps)
    tl.store(mean + row, center)
    tl.store(rstd + row, scale)
    made = value * scale * tl.load(w + offset, mask=inside) + tl.load(b + offset, mask=inside)
    tl.store(out + row * columns + offset, made, mask=inside)


def layer_norm_forward(x, weight, bias, eps):
    columns = x.shape[-1]
    rows = x.numel() // columns
    out = torch.empty_like(x)
    mean, rstd = (torch.empty(rows, dtype=torch.float32, device="cuda") for _ in range(2))
    _forward[(rows,)](out, x, weight, bias, mean, rstd, columns, eps, **settings(columns))
    return out, mean, rstd


def layer_norm_backward(dy, x, weight, mean, rstd):
    _backward[(1,)](dy)


class LayerNorm(torch.autograd.Function):
    @staticmethod
    @dense
    def forward(ctx, x, normalized_shape, weight, bias, mask: Optional[torch.Tensor], eps, kind="plain"):
        out, mean, rstd = layer_norm_forward(x, weight, bias, eps)
        ctx.save_for_backward(x, weight, mean, rstd)
        return out

    @staticmethod
    def backward(ctx, dy):
        return layer_norm_backward(dy, *ctx.saved_tensors), None, None, None, None, None, None
'''

ENTROPY = (
    HEAD
    + '''
@triton.jit
def _loss(losses, x, labels, columns, BLOCK: tl.constexpr):
    row, offset = tl.program_id(0), tl.arange(0, BLOCK)
    value = tl.load(x + row * columns + offset, mask=offset < columns, other=-float("inf")).to(tl.float32)
    top = tl.max(value, axis=0)
    total = tl.log(tl.sum(tl.exp(value - top), axis=0)) + top
    tl.store(losses + row, total - tl.load(x + row * columns + tl.load(labels + row)))
    tl.debug_barrier()
    tl.store(x + row * columns + offset, tl.exp(value - total), mask=offset < columns)


def cross_entropy(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """The losses; the gradient replaces the logits."""
    losses = torch.empty(labels.shape, dtype=torch.float32, device=logits.device)
    columns = logits.shape[1]
    _loss[labels.shape](losses, logits, labels, columns, BLOCK=triton.next_power_of_2(columns))
    return losses
'''
)

ODD = (
    HEAD
    + """
@triton.jit
def _powers(out, x, elements, POWER: tl.constexpr):
    offset = tl.program_id(0) * 256 + tl.arange(0, 256)
    value = tl.load(x + offset, mask=offset < elements)
    made = value
    for _ in range(POWER - 1):
        made = made * value
    tl.store(out + offset, made, mask=offset < elements)


def powers(x, exponent: int):
    out = torch.empty_like(x)
    _powers[(triton.cdiv(x.numel(), 256),)](out, x, x.numel(), POWER=exponent)
    return out


def squares_and_cubes(x):
    return powers(x, 2), None, powers(x, 3).to(torch.float32), 4
"""
)

FILES = {
    "softmax.py": SOFTMAX,
    "matmul.py": MATMUL,
    "acme/__init__.py": "",
    "acme/common.py": UTILS,
    "acme/ops/norm.py": NORM,
    "alone/norm.py": NORM,
    "cross_entropy.py": ENTROPY,
    "odd.py": ODD,
    "nothing.py": "import torch\n\n\ndef softmax(x):\n    return torch.softmax(x, -1)\n",
    "wrong.py": "def f(:\n",
}


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sources")
    for name, text in FILES.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


@pytest.fixture(scope="module")
def worker() -> Iterator[Supervisor]:
    settings = TimingSettings(stopping="count", min_samples=3, cache="hot")
    with Supervisor(device.cpu(), settings, seed=0, timeout_s=120.0) as made:
        yield made


def measured(worker: Supervisor, folder: Path, dtype: str = "float32") -> Outcome:
    """Measure the made provider at sizes beside those that were tried."""
    kernel = catalog.find(str(folder)).loaded.kernel
    sizes = {"rows": 5, "columns": 100, "m": 70, "k": 64, "n": 130, "elements": 300}
    values: dict[str, int | str | float] = {
        name: sizes.get(name, one.default) for name, one in kernel.dimensions().items()
    }
    problem = Values({**values, "dtype": dtype})
    point = Point(kernel=folder.name, provider="triton", problem=problem, parameters=Values())
    return worker.measure(str(folder), point)


MADE = {
    "softmax.py": "torch.softmax(x, -1)",
    "matmul.py": "a @ b",
    "acme/ops/norm.py": "F.layer_norm(x, x.shape[-1:], weight, bias, eps)",
    "cross_entropy.py": 'F.cross_entropy(logits, labels, reduction="none")',
}


FAULT = {
    "softmax.py": ("top / tl.sum(top", "top / tl.max(top"),
    "matmul.py": ("left, right)", "left, right) * 1.01"),
    "acme/ops/norm.py": ("value * scale", "value * scale * 1.01"),
    "cross_entropy.py": (" + top\n", " + top * 1.01\n"),
}
"""A fault for each file: a text, and its replacement."""


@pytest.mark.slow
@pytest.mark.parametrize("file", MADE)
def test_a_launcher_becomes_a_kernel_that_is_verified(
    file: str, sources: Path, tmp_path: Path, worker: Supervisor, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / f"taken_{Path(file).stem}"
    new.run(NewConfig.model_validate({"kernel": str(folder), "from": str(sources / file)}))
    said = capsys.readouterr().out
    assert f"In Triton's interpreter it agrees with {MADE[file]}, the definition in torch.py." in said
    for dtype in ("float32", "bfloat16"):
        assert (found := measured(worker, folder, dtype)).status == "verified", found
    taken = (folder / "triton.py").read_text()
    assert not any(word in taken for word in ("manual_seed", "benchmark", "transformers"))
    assert ("It overwrites logits, so triton.py passes a copy" in said) == ("cross" in file)
    assert ("Queries of the GPU have another value" in said) == (file in ("softmax.py", "acme/ops/norm.py"))
    planted = shutil.copytree(folder, tmp_path / f"wrong_{folder.name}") / "triton.py"
    planted.write_text(taken.replace(*FAULT[file]))
    assert planted.read_text() != taken
    assert (wrong := measured(worker, planted.parent)).status == "incorrect", wrong


@pytest.mark.slow
def test_a_launcher_without_a_known_name_says_what_is_left_to_write(
    sources: Path, tmp_path: Path, worker: Supervisor, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "both_powers"
    new.run(NewConfig.model_validate({"kernel": str(folder), "from": f"{sources}/odd.py"}))
    assert "It runs in Triton's interpreter. Write its definition into torch.py." in capsys.readouterr().out
    first = measured(worker, folder)
    assert first.status == "runtime_error"
    assert "write the definition of both_powers with torch here" in str(first.error)
    path = shutil.copytree(folder, tmp_path / "written") / "torch.py"
    lines = path.read_text().splitlines()
    path.write_text("\n".join([*lines[:-1], "    return x**2, x**3", ""]))
    assert (found := measured(worker, path.parent)).status == "verified", found


def test_a_value_that_can_not_be_guessed_is_named(
    sources: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "one_power"
    new.run(NewConfig.model_validate({"kernel": str(folder), "from": f"{sources}/odd.py:powers"}))
    said = capsys.readouterr().out
    assert "No value of exponent can be guessed, so it is None: write it into triton.py." in said
    assert "With these inputs the launcher fails in Triton's interpreter: " in said
    assert "powers(x=x, exponent=None)" in (folder / "triton.py").read_text()


REFUSED = {
    "absent.py": "absent.py can't be read: No such file or directory.",
    "wrong.py": "wrong.py:1: invalid syntax.",
    "nothing.py": "nothing.py:1: it has no launcher: outside of @triton.jit no function has kernel[grid](…).",
    "odd.py:cubes": "unknown launcher of odd.py 'cubes'. ",
    "alone/norm.py": "alone/norm.py:10: it imports contiguous from acme.common, which is not there: install "
    "acme, or name the file where it lies in its own package.",
}


@pytest.mark.parametrize("file", REFUSED)
def test_a_file_that_can_not_be_taken_is_one_sentence(file: str, sources: Path, tmp_path: Path) -> None:
    folder = tmp_path / "refused"
    with pytest.raises(UserError) as error:
        new.run(NewConfig.model_validate({"kernel": str(folder), "from": str(sources / file)}))
    assert REFUSED[file] in str(error.value)
    assert not folder.exists()


@pytest.mark.slow
def test_the_command_takes_a_name_and_from(sources: Path, tmp_path: Path) -> None:
    done = python("-m", "pipeline.new", str(tmp_path / "mine"), f"from={sources}/softmax.py")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[-1].endswith(f"kernel={tmp_path}/mine preset=smoke")
    empty = python("-m", "pipeline.new", str(tmp_path / "other"), "from=")
    assert empty.stderr == "error: from: is empty; write a path.\n"
    again = python("-m", "pipeline.new", str(tmp_path / "other"), f"form={sources}/softmax.py")
    assert (
        again.stderr == "error: unknown option 'form'. Did you mean 'from'? Known: from, project, kernel.\n"
    )
