"""A matrix with its bits inverted, and the number of set bits of each row: outputs and a workspace that are
handed in, and unsigned integers of every width."""

from __future__ import annotations

from dataclasses import dataclass

from kernel_pipeline.contract import Kernel, Provider, Tolerance, Work, bytes_of, one_of


@dataclass(frozen=True, kw_only=True)
class Matrix:
    rows: int = 5
    columns: int
    dtype: str = one_of("uint16", "uint32", "uint64")

    @property
    def shape(self) -> tuple[int, int]:
        return self.rows, self.columns


def work(problem: Matrix) -> Work:
    return Work(
        bytes_of(problem.dtype, problem.shape, problem.shape) + bytes_of("int64", (problem.rows,)),
        {"int8": problem.rows * problem.columns},
    )


def tolerance(problem: Matrix) -> Tolerance:
    return Tolerance(rtol=0.0, atol=0.0)


kernel = Kernel(
    problem=Matrix,
    size=("columns",),
    work=work,
    tolerance=tolerance,
    destination="last",
    workspaces="workspaces",
    providers=(
        Provider("torch", "torch.py:inverted"),
        Provider("triton", "triton.py:inverted"),
        Provider("last_row_unwritten", "torch.py:last_row_unwritten"),
        Provider("returned", "torch.py:returned"),
        Provider("workspace_taken_as_zeros", "torch.py:workspace_taken_as_zeros"),
    ),
)
