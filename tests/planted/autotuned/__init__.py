"""``out[r] = sum over c of x[r, c] * w[c]``, in Triton with autotune, heuristics and several launches."""

from __future__ import annotations

from dataclasses import dataclass

from kernel_pipeline.contract import EPSILON, Kernel, Provider, Tolerance, Work, bytes_of, one_of

RIGHT = ("pruned", "accumulated", "restored", "kept", "even", "stacked", "split", "wrapped", "on_device")
WRONG = ("wrong_config", "wrong_heuristic", "unreduced")
FAULTY = ("inside_out", "broken_helper")
"""Providers that are right, that give wrong answers, and that fail with an error."""


@dataclass(frozen=True, kw_only=True)
class Rows:
    rows: int
    columns: int
    dtype: str = one_of("float32", "bfloat16")


def work(problem: Rows) -> Work:
    moved = bytes_of(problem.dtype, (problem.rows, problem.columns), (problem.columns,))
    return Work(moved + 4 * problem.rows, {"float32": 2 * problem.rows * problem.columns})


def tolerance(problem: Rows) -> Tolerance:
    return Tolerance(rtol=1e-5, atol=problem.columns * EPSILON["float32"])


kernel = Kernel(
    problem=Rows,
    size=("columns",),
    work=work,
    tolerance=tolerance,
    providers=(
        Provider("torch", "torch.py:product"),
        *(Provider(name, f"triton.py:{name}") for name in (*RIGHT, *WRONG, *FAULTY)),
    ),
)
