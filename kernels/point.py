"""What is measured, by name alone: no torch, so that whoever only plans or reads results starts quickly."""

from __future__ import annotations

from dataclasses import asdict, dataclass

AXES = ("block_size", "num_warps", "num_stages")
"""Launch parameters that a sweep may vary, beside size, rows and dtype, which every provider obeys."""

DTYPE_NAMES = ("float32", "bfloat16", "float16")
"""The dtypes a point may name."""


Shape = tuple[int, ...]


@dataclass(frozen=True)
class Point:
    """One thing to measure: a provider of a kernel at a size, dtype and launch configuration.

    An axis that the provider does not obey is None. ``rows`` is the number of rows in place of the kernel's
    own, and None for that.
    """

    kernel: str
    provider: str
    size: int
    dtype: str
    block_size: int | None = None
    num_warps: int | None = None
    num_stages: int | None = None
    rows: int | None = None

    @property
    def extent(self) -> str:
        """The size as people write it, ``262144``, or with rows of its own ``37x262144``."""
        return extent(self.size, self.rows)

    def axes(self) -> dict[str, int]:
        """The launch parameters this point sets, as keyword arguments for the provider."""
        return {name: value for name, value in asdict(self).items() if name in AXES and value is not None}

    def __str__(self) -> str:
        axes = "".join(f" {name}={value}" for name, value in self.axes().items())
        rows = "" if self.rows is None else f" rows={self.rows}"
        return f"{self.kernel}/{self.provider} size={self.size}{rows} {self.dtype}{axes}"


def extent(size: int | None, rows: int | None) -> str:
    """``Point.extent`` of the two."""
    return f"{size}" if rows is None else f"{rows}x{size}"
