"""The sum or the mean of each row: of all its elements, or at each place of those up to it.

Words of the problem and of a provider's parameters, true ones and others.
"""

from __future__ import annotations

from dataclasses import dataclass

from kernel_pipeline.contract import Kernel, Provider, Tolerance, Work, bytes_of, one_of


@dataclass(frozen=True, kw_only=True)
class Rows:
    rows: int = 4
    columns: int
    dtype: str = one_of("float32", "bfloat16")
    mode: str = one_of("sum", "mean")
    causal: bool = False

    @property
    def shape(self) -> tuple[int, int]:
        return self.rows, self.columns


@dataclass(frozen=True, kw_only=True)
class Ways:
    strategy: str = one_of("scan", "product")
    reverse: bool = False
    chunk: int = one_of(8, 16, unit="c")


def work(problem: Rows) -> Work:
    return Work(
        bytes_of(problem.dtype, problem.shape, problem.shape), {"float32": problem.rows * problem.columns}
    )


def tolerance(problem: Rows) -> Tolerance:
    relative = {"float32": 1e-4, "bfloat16": 2e-2}[problem.dtype]
    return Tolerance(rtol=relative, atol=relative)


kernel = Kernel(
    problem=Rows,
    size=("columns",),
    work=work,
    tolerance=tolerance,
    arguments=("mode", "causal"),
    providers=(
        Provider("torch", "torch.py:prefix"),
        Provider("ways", "torch.py:ways", Ways),
        Provider("never_causal", "torch.py:never_causal"),
    ),
)
