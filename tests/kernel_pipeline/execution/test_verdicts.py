"""Kernels as others write them, judged by real processes: structured inputs, degenerate problems, providers
that change their inputs' objects, faults of Triton's interpreter, mistakes in the kernel's own files."""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest
import torch

from kernel_pipeline.execution import instance
from kernel_pipeline.execution.protocol import Draw, Fill, Prepare, Spread
from kernel_pipeline.execution.shared_memory import SharedMemory
from kernel_pipeline.execution.supervisor import Supervisor
from kernel_pipeline.execution.verifier import Verifier
from kernel_pipeline.machine import device
from kernel_pipeline.records.base import Values
from kernel_pipeline.records.measurement import Outcome
from kernel_pipeline.records.point import Point
from kernel_pipeline.records.settings import TimingSettings
from kernel_pipeline.timing.stopwatch import ring
from pipeline.keys import identity
from pipeline.points import catalog
from pipeline.points.plan import Target, plan

SETTINGS = TimingSettings(stopping="count", min_samples=3, cache="hot")

DECLARATION = '''"""{summary}"""

from dataclasses import dataclass

from kernel_pipeline.contract import Kernel, Provider, Tolerance, Work, one_of


@dataclass(frozen=True, kw_only=True)
class Problem:
    n: int
    dtype: str = one_of("float32", "bfloat16")


def work(problem):
    return Work(8 * problem.n, {{"float32": problem.n}})


def tolerance(problem):
    return Tolerance(rtol={rtol}, atol={atol})


kernel = Kernel(
    problem=Problem,
    size=("n",),
    work=work,
    tolerance=tolerance,
    providers=tuple(Provider(name, f"{{file}}:{{name}}") for file, name in {providers}),
    baseline="right",
)
'''

REFERENCE = """import torch

from kernel_pipeline.tensors import dtype_of, normal


def inputs(problem, device, seed):
{inputs}


def outputs(problem):
    return [({shape}, {dtype})]


def reference({arguments}):
{reference}
"""

NORMAL = "    return normal([(problem.n,)], problem.dtype, device, seed)"


def written(
    folder: Path,
    name: str,
    providers: str,
    reference: str,
    *,
    inputs: str = NORMAL,
    arguments: str = "x",
    shape: str = "(problem.n,)",
    dtype: str = "dtype_of(problem.dtype)",
    file: str = "torch.py",
    rtol: float = 0.0,
    atol: float = 0.0,
) -> str:
    """A kernel's folder; its providers are the functions of a file that take its inputs."""
    made = folder / name
    made.mkdir()
    names = [line[4 : line.index("(")] for line in providers.splitlines() if line.startswith("def ")]
    known = [(file, one) for one in names if not one.startswith("_")]
    if file != "torch.py":
        (made / "torch.py").write_text("def right(x):\n    return (x.double() * 2 + 0.001).to(x.dtype)\n")
        known.append(("torch.py", "right"))
    (made / "__init__.py").write_text(DECLARATION.format(summary=name, rtol=rtol, atol=atol, providers=known))
    (made / "reference.py").write_text(
        REFERENCE.format(inputs=inputs, arguments=arguments, shape=shape, dtype=dtype, reference=reference)
    )
    (made / file).write_text(providers)
    return str(made)


@pytest.fixture(scope="module")
def worker() -> Iterator[Supervisor]:
    with Supervisor(device.cpu(), SETTINGS, seed=0, timeout_s=120.0) as made:
        made.unkeyed = identity.unkeyed
        yield made


def point(where: str, provider: str, n: int, dtype: str = "float32") -> Point:
    problem = Values({"n": n, "dtype": dtype})
    return Point(kernel=Path(where).name, provider=provider, problem=problem)


def measured(worker: Supervisor, where: str, provider: str, n: int = 100, dtype: str = "float32") -> Outcome:
    return worker.measure(where, point(where, provider, n, dtype))


SEARCH = """import torch


def right(x, bounds):
    return torch.searchsorted(bounds, x, out_int32=True)


def by_count(x, bounds):
    return (bounds[None, :] < x[:, None]).sum(1).to(torch.int32)
"""

SORTED = """    x, bounds = normal([(problem.n,), (64,)], problem.dtype, device, seed)
    return x, bounds if device.type == "meta" else bounds.sort().values"""


@pytest.mark.slow
def test_sorted_inputs_stay_sorted_in_every_set(worker: Supervisor, tmp_path: Path) -> None:
    where = written(
        tmp_path,
        "search",
        SEARCH,
        "    return torch.searchsorted(bounds, x)",
        inputs=SORTED,
        arguments="x, bounds",
        dtype="torch.int32",
    )
    for provider in ("right", "by_count"):
        assert measured(worker, where, provider).status == "ok"

    cpu = torch.device("cpu")
    found = instance.load_instance(where, point(where, "right", 100))
    for sets in (2, 3, 7, 300, 2001):
        made = ring(found.inputs(cpu, 0), sets, found.another(cpu))
        assert len(made) == sets
        assert all(torch.equal(bounds, bounds.sort().values) for _, bounds in made)
        assert not any(torch.equal(a, b) for (a, _), (b, _) in pairwise([*made, made[0]]))
        assert len({x.data_ptr() for x, _ in made}) == sets

    memory = os.memfd_create("test")
    judge, seen = Verifier("cpu", 0, memory), SharedMemory(cpu, memory)
    judge.prepare(Prepare(where=where, point=point(where, "right", 100)))
    shared = judge.spread(Spread(sets=32))
    seen.map(shared.region)
    before: set[bytes] = set()
    for _ in range(2):
        judge.draw(Draw())
        judge.fill(Fill())
        for index in range(shared.sets):
            x, bounds = (seen.tensor(layout.at(index)) for layout in shared.inputs)
            assert torch.equal(bounds, bounds.sort().values)
            before.add(bytes(x[:2].numpy()))
    assert len(before) == 2 * shared.sets, "what an audit's calls are given was in no earlier call"
    os.close(memory)


@pytest.mark.slow
def test_a_problem_at_which_any_answer_passes_says_so(worker: Supervisor, tmp_path: Path) -> None:
    providers = """import torch


def right(x):
    return torch.relu(x)


def zeros(x):
    return torch.zeros_like(x)
"""
    negative = "    return tuple(-x.abs() for x in normal([(problem.n,)], problem.dtype, device, seed))"
    flat = written(tmp_path, "flat", providers, "    return torch.relu(x.double())", inputs=negative)
    assert measured(worker, flat, "zeros").any_answer == "zeros"
    relu = written(tmp_path, "relu", providers, "    return torch.relu(x.double())")
    assert measured(worker, relu, "right").any_answer is None
    assert measured(worker, relu, "zeros").status == "incorrect"
    same = written(
        tmp_path, "same", "def right(x):\n    return x.clone()\n", "    return x.double()", rtol=1e-6
    )
    assert measured(worker, same, "right").any_answer == "an input"
    count = "def right(x):\n    return (x == x).sum()\n"
    full = written(tmp_path, "full", count, "    return (x == x).sum()", shape="()", dtype="torch.int64")
    assert measured(worker, full, "right").any_answer == "the answer to other inputs"


@pytest.mark.slow
def test_files_that_are_read_and_not_in_the_key_are_told_and_no_others_are(
    worker: Supervisor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "weights.txt").write_text("2")
    (tmp_path / "compiled").mkdir()
    (tmp_path / "compiled/object.o").write_text("2")
    monkeypatch.setenv("QUACK_CACHE_DIR", str(tmp_path / "compiled"))
    providers = """import os
from pathlib import Path

import torch

HERE = Path(__file__).parent


def outside(x):
    return x * int((HERE.parent / ("weights" + ".txt")).read_text())


def inside(x):
    return x * int((HERE / ("factor" + ".txt")).read_text())


def cached(x):
    return x * int(open(os.environ["QUACK_CACHE_DIR"] + "/object.o").read())


def written(x):
    (HERE.parent / "own.txt").write_text("2")
    return x * int((HERE.parent / "own.txt").read_text())


def right(x):
    return x * 2
"""
    where = written(tmp_path, "reading", providers, "    return x.double() * 2")
    (tmp_path / "reading/factor.txt").write_text("2")
    worker.close()  # the next process finds the files there
    outcome = measured(worker, where, "outside")
    assert outcome.status == "ok"
    assert outcome.unkeyed is not None
    assert outcome.unkeyed.endswith("/weights.txt")
    assert outcome.incomparable == f"it depends on files that are not in the key: {outcome.unkeyed}"
    for provider in ("inside", "cached", "written", "right"):
        assert measured(worker, where, provider).unkeyed is None, provider
    worker.close()
    assert measured(worker, where, "outside").unkeyed == outcome.unkeyed
    other = written(tmp_path, "other", "def right(x):\n    return x * 2\n", "    return x.double() * 2")
    assert measured(worker, other, "right").unkeyed is None, "another kernel read it"
    for kernel, provider in (("square", "torch_square"), ("vector_add", "torch"), ("square", "torch_mul")):
        point = plan(catalog.find(kernel), "smoke", Target("cpu"), {}, [provider]).points[0]
        assert worker.measure(kernel, point).unkeyed is None, "modules of kernels/ are in the key"
    worker.close()
    read = f"    return x.double() * int(open({str(tmp_path)!r} + '/weights.txt').read())"
    judged = written(tmp_path, "judged", "def right(x):\n    return x * 2\n", read)
    assert measured(worker, judged, "right").unkeyed == outcome.unkeyed, "the reference counts, too"


@pytest.mark.slow
def test_workers_have_torch_compiles_front_end_when_a_provider_has_imported_it(
    worker: Supervisor, tmp_path: Path
) -> None:
    """Only then, since the import takes longer than a point of a kernel without it."""
    providers = """import sys


def right(x):
    return x * (3 if "torch._dynamo" in sys.modules else 2)


def compiles(x):
    import torch._dynamo
    return x * 2


def has(x):
    return x * (2 if "torch._dynamo" in sys.modules else 3)
"""
    where = written(tmp_path, "compiling", providers, "    return x.double() * 2")
    worker.close()
    for provider in ("right", "compiles"):
        outcome = measured(worker, where, provider)
        assert outcome.status == "ok", outcome.error
    measured(worker, where, "right")  # its worker may have been forked before
    assert measured(worker, where, "has").status == "ok"


@pytest.mark.slow
def test_what_a_call_does_to_its_input_objects_ends_with_it(worker: Supervisor, tmp_path: Path) -> None:
    providers = """import torch


class Other(torch.Tensor):
    pass


def right(x):
    return torch.relu(x)


def learns(x):
    return torch.relu(x.requires_grad_())


def shrinks(x):
    out = torch.relu(x)
    x.resize_(1)
    return out


def grows(x):
    out = torch.relu(x)
    x.resize_(100_000)
    return out


def renames(x):
    out = torch.relu(x)
    x.__class__ = Other
    return out


def moves(x):
    out = torch.relu(x)
    x.data = torch.zeros(x.shape)
    return out
"""
    where = written(tmp_path, "objects", providers, "    return torch.relu(x.double())")
    for provider, error in (
        ("learns", None),
        ("shrinks", "changed its input to shape (1,)"),
        ("grows", "changed its input to shape (100000,)"),
        ("renames", "changed its input to class Other"),
        ("moves", "after timing: "),
    ):
        found = measured(worker, where, provider)
        assert found.error is None or (error is not None and error in found.error), found.error
        assert measured(worker, where, "right").status == "ok", provider


def test_a_sum_of_most_elements_is_caught_before_it_is_timed(worker: Supervisor, tmp_path: Path) -> None:
    """Its mean is far larger than its spread, so that some inputs let it pass."""
    providers = """def right(x):
    return x.sum()


def most(x):
    count = x.numel() // 100 * 99
    return x[:count].sum() * x.numel() / count
"""
    uneven = """    (x,) = normal([(problem.n,)], problem.dtype, device, seed)
    return (x if device.type == "meta" else x * 5 + 40,)"""
    where = written(
        tmp_path, "total", providers, "    return x.double().sum()", inputs=uneven, shape="()", rtol=1e-5
    )
    for _ in range(2):
        found = measured(worker, where, "most", 100_000)
        assert found.status == "incorrect"
        assert str(found.error).startswith(("first call: ", "on other inputs: "))
    # In one of 70 runs the sum of other inputs is within the tolerance, and ``any_answer`` says so.
    right = measured(worker, where, "right", 100_000)
    assert right.status == "ok"
    assert right.tolerance_used is not None and 0 <= right.tolerance_used <= 1


TRITON = """import torch
import triton
import triton.language as tl

TABLE = [0] * 8


@triton.autotune(configs=[triton.Config({"BLOCK": 64}), triton.Config({"BLOCK": 128})], key=["n"])
@triton.jit
def _tuned(out, x, n, BLOCK: tl.constexpr):
    offset = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + offset, mask=offset < n).to(tl.float32) * 2 + 0.001
    tl.store(out + offset, value.to(out.dtype.element_ty), mask=offset < n)


@triton.jit
def _scalar(out, x, n, eps, BLOCK: tl.constexpr):
    offset = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + offset, mask=offset < n).to(tl.float32) * 2 + eps.to(tl.float32)
    tl.store(out + offset, value.to(out.dtype.element_ty), mask=offset < n)


@triton.jit
def _short(out, x, n, BLOCK: tl.constexpr):
    offset = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + offset, mask=offset < n)
    tl.store(out + offset, tl.where(value > 0, value + value, value * 2) + 0.001, mask=offset < n)


@triton.jit
def _dot(out, x, n, identity, BLOCK: tl.constexpr):
    row = tl.arange(0, 16)
    place = row[:, None] * 16 + row[None, :]
    value = tl.dot(tl.load(x + place), tl.load(identity + place)) * 2 + 0.001
    tl.store(out + place, value.to(out.dtype.element_ty))


def _launched(function, x, *rest):
    out = torch.empty_like(x)
    function[(triton.cdiv(x.numel(), 64),)](out, x, x.numel(), *rest, BLOCK=64)
    return out


def tuned(x):
    out = torch.empty_like(x)
    _tuned[lambda meta: (triton.cdiv(x.numel(), meta["BLOCK"]),)](out, x, x.numel())
    return out


def scalar(x):
    return _launched(_scalar, x, 0.001)


def short(x):
    return _launched(_short, x)


def dot(x):
    return _launched(_dot, x, torch.eye(16, dtype=x.dtype, device=x.device))


def wrong(x):
    return _launched(_scalar, x, 0.1)


def index(x):
    return scalar(x + TABLE[x.device.index])


def driver(x):
    triton.runtime.driver.active.get_current_target()
    return scalar(x)


def mistaken(x):
    return x.nonsense
"""


def test_faults_of_the_interpreter_are_not_the_providers(worker: Supervisor, tmp_path: Path) -> None:
    where = written(
        tmp_path, "odd", TRITON, "    return x.double() * 2 + 0.001", file="triton.py", rtol=2e-2, atol=1e-3
    )
    for dtype in ("float32", "bfloat16"):
        for provider in ("tuned", "scalar", "short", "dot"):
            found = measured(worker, where, provider, 256, dtype)
            assert (found.status, found.error) == ("verified", None), provider
    for provider, status, error in (
        ("wrong", "incorrect", "of 256 elements are wrong"),
        ("index", "not_judged", "only a GPU can tell: "),
        ("driver", "not_judged", "0 active drivers"),
        ("mistaken", "runtime_error", "'Tensor' object has no attribute 'nonsense'"),
    ):
        found = measured(worker, where, provider, 256)
        assert found.status == status
        assert error in str(found.error)


def test_a_mistake_in_the_kernels_own_files_names_file_and_line(worker: Supervisor, tmp_path: Path) -> None:
    right = "def right(x):\n    return x\n"
    above = written(
        tmp_path, "above", right, "    return x[x > 0].double()", inputs=NORMAL, shape="(problem.n // 2,)"
    )
    assert f"{above}/reference.py:14: `reference` gives an output of shape (" in str(
        measured(worker, above, "right").error
    )
    raises = written(tmp_path, "raises", right, "    return x / [1]")
    assert f"{raises}/reference.py:15: `return x / [1]`: TypeError: " in str(
        measured(worker, raises, "right").error
    )
    made = written(tmp_path, "made", right, "    return x.double()", inputs="    return nonsense")
    assert f"{made}/reference.py:7: `return nonsense`: NameError: " in str(
        measured(worker, made, "right").error
    )
    hashed = written(
        tmp_path,
        "hashed",
        "def right(x):\n    return x.long() << 60\n",
        "    return (x.long() << 60).double()",
        dtype="torch.int64",
    )
    assert "let it give integers" in str(measured(worker, hashed, "right").error)
