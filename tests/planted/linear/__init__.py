"""A linear layer, ``x @ w.T + bias``, whose weights are prepared once."""

from __future__ import annotations

from dataclasses import dataclass

from kernel_pipeline.contract import Kernel, Provider, Tolerance, Work, bytes_of, one_of


@dataclass(frozen=True, kw_only=True)
class Linear:
    rows: int
    columns: int
    dtype: str = one_of("float32")


def work(problem: Linear) -> Work:
    rows, columns = problem.rows, problem.columns
    moved = bytes_of(problem.dtype, (rows, columns), (columns, columns), (columns,), (rows, columns))
    return Work(moved, {problem.dtype: 2 * rows * columns**2})


def tolerance(problem: Linear) -> Tolerance:
    del problem
    return Tolerance(rtol=1e-4, atol=1e-3)


kernel = Kernel(
    problem=Linear,
    size=("columns",),
    work=work,
    tolerance=tolerance,
    weights=("w", "bias"),
    providers=(
        Provider("torch", "torch.py:linear"),
        Provider("transposed", "torch.py:transposed", prepare="torch.py:transpose"),
        Provider("viewed", "torch.py:transposed", prepare="torch.py:view"),
        Provider("spoils", "torch.py:transposed", prepare="torch.py:spoil"),
        Provider("keeps", "torch.py:transposed", prepare="torch.py:keep"),
        Provider("ahead", "torch.py:answered", prepare="torch.py:answer_ahead"),
        Provider("writes", "torch.py:written", prepare="torch.py:transpose"),
        Provider("listed", "torch.py:transposed", prepare="torch.py:listed"),
        Provider("ragged", "torch.py:beside", prepare="torch.py:longer_each_time"),
    ),
)
