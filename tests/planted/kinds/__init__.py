"""A vector backwards, of any dtype that an output can have, by providers that are right, off by one and
inverted."""

from __future__ import annotations

from dataclasses import dataclass

from kernel_pipeline.contract import Kernel, Provider, Tolerance, Work, one_of

DTYPES = (
    *("bool", "uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64"),
    *("float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu"),
    *("float16", "bfloat16", "float32", "float64", "complex32", "complex64", "complex128"),
)


@dataclass(frozen=True, kw_only=True)
class Vector:
    elements: int
    dtype: str = one_of(*DTYPES)


def work(problem: Vector) -> Work:
    return Work(2 * problem.elements, {"float32": problem.elements})


def tolerance(problem: Vector) -> Tolerance:
    return Tolerance(rtol=0.0, atol=0.0)


kernel = Kernel(
    problem=Vector,
    size=("elements",),
    work=work,
    tolerance=tolerance,
    providers=(
        Provider("torch", "torch.py:backwards"),
        Provider("off_by_one", "torch.py:off_by_one"),
        Provider("inverted", "torch.py:inverted"),
        Provider("unwritten", "torch.py:unwritten"),
        Provider("half_written", "torch.py:half_written"),
        Provider("real_alone", "torch.py:real_alone"),
    ),
)
