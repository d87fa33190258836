"""Four-bit weights, two a byte, made whole, and each row's sum of their halves of bytes, which is exact.

``weights[r, c] = (nibble[r, c] - 8) * scales[r, c // group]``; the low half of a byte is
the even column. Inputs of two dtypes, and an output of integers.
"""

from __future__ import annotations

from dataclasses import dataclass

from kernel_pipeline.contract import Gpu, Kernel, Provider, Tolerance, Work, bytes_of, one_of


@dataclass(frozen=True, kw_only=True)
class Packed:
    rows: int = 4
    columns: int
    group: int = one_of(32, 64)
    dtype: str = one_of("float32", "bfloat16")


@dataclass(frozen=True, kw_only=True)
class Bytes:
    bytes_a_step: int = one_of(16, 32, unit="")


def work(problem: Packed) -> Work:
    rows, columns = problem.rows, problem.columns
    read = bytes_of("uint8", (rows, columns // 2)) + bytes_of(problem.dtype, (rows, columns // problem.group))
    written = bytes_of(problem.dtype, (rows, columns)) + bytes_of("int32", (rows,))
    return Work(read + written, {"float32": rows * columns, "int8": rows * columns})


def tolerance(problem: Packed) -> tuple[Tolerance, Tolerance]:
    rounded = Tolerance(rtol={"float32": 1e-6, "bfloat16": 2.0**-8}[problem.dtype], atol=0.0)
    return rounded, Tolerance(rtol=0.0, atol=0.0)


def whole_steps(problem: Packed, parameters: Bytes, gpu: Gpu | None) -> str | None:
    if problem.columns // 2 % parameters.bytes_a_step:
        return f"{problem.columns // 2} bytes per row are not a multiple of {parameters.bytes_a_step}"
    return None


kernel = Kernel(
    problem=Packed,
    size=("columns",),
    work=work,
    tolerance=tolerance,
    arguments=("group",),
    baseline="whole",
    providers=(
        Provider("whole", "torch.py:whole"),
        Provider("steps", "torch.py:steps", Bytes, whole_steps),
        Provider("nibbles_swapped", "torch.py:nibbles_swapped"),
        Provider("scale_of_the_next_group", "torch.py:scale_of_the_next_group"),
        Provider("sum_unwritten", "torch.py:sum_unwritten"),
        Provider("sum_off_by_one", "torch.py:sum_off_by_one"),
        Provider("bytewise", "torch.py:bytewise", reference="bytewise.py"),
        Provider("bytewise_unasked", "torch.py:bytewise"),
    ),
)
