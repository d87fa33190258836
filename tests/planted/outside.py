"""A kernel outside of the repository, of two providers in a file each, that a test may edit."""

from __future__ import annotations

from pathlib import Path

FILES = {
    "__init__.py": '''"""Twice every element."""

from dataclasses import dataclass

from kernel_pipeline.contract import Kernel, Provider, Tolerance, Work, bytes_of, one_of


@dataclass(frozen=True, kw_only=True)
class Problem:
    """A vector."""

    n: int
    dtype: str = one_of("float32", "float64")


@dataclass(frozen=True, kw_only=True)
class Parts:
    """How many pieces a vector is doubled in."""

    parts: int = one_of(1, 2, 4, 8, default=2)


def work(problem: Problem) -> Work:
    return Work(bytes_of(problem.dtype, (problem.n,), (problem.n,)), {problem.dtype: problem.n})


def tolerance(problem: Problem) -> Tolerance:
    return Tolerance(rtol=0.0, atol=0.0)


kernel = Kernel(
    problem=Problem,
    size=("n",),
    work=work,
    tolerance=tolerance,
    providers=(
        Provider("whole", "whole.py:double", language="torch"),
        Provider("pieces", "pieces.py:double", Parts, language="torch"),
    ),
    baseline="whole",
)
''',
    "reference.py": '''"""Inputs and the right answer."""

import torch

from kernel_pipeline.tensors import dtype_of, normal


def inputs(problem, device, seed):
    return normal([(problem.n,)], problem.dtype, device, seed)


def reference(x):
    return x.double() * 2


def outputs(problem):
    return (((problem.n,), dtype_of(problem.dtype)),)
''',
    "whole.py": '''"""The whole vector."""


def double(x):
    return x * 2
''',
    "pieces.py": '''"""In pieces."""

import torch


def double(x, parts):
    return torch.cat([piece * 2 for piece in x.chunk(parts)])
''',
    "kernel.yaml": """workloads:
  few: {x: n, n: [8, 64, 16, 256, 4096], dtype: [float32, float64]}
presets:
  smoke: {workloads: [few], pieces: all}
""",
}


def write(folder: Path) -> Path:
    """The kernel in a folder of its own."""
    made = folder / "double"
    made.mkdir()
    for name, text in FILES.items():
        (made / name).write_text(text)
    return made


def edit(made: Path) -> None:
    """Change what the provider ``pieces`` does, and nothing else."""
    path = made / "pieces.py"
    text = path.read_text()
    assert "piece * 2" in text
    path.write_text(text.replace("piece * 2", "piece + piece"))
