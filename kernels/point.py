"""What is measured, by name alone: no torch, so that whoever only plans or reads results starts quickly."""

from __future__ import annotations

from dataclasses import asdict, dataclass

AXES = ("block_size", "num_warps", "num_stages")
"""Launch parameters that a sweep may vary, beside size and dtype, which every provider obeys."""

DTYPE_NAMES = ("float32", "bfloat16", "float16")
"""The dtypes a point may name."""


Shape = tuple[int, ...]


@dataclass(frozen=True)
class Point:
    """One thing to measure: a provider of a kernel at a size, dtype and launch configuration.

    An axis that the provider does not obey is None.
    """

    kernel: str
    provider: str
    size: int
    dtype: str
    block_size: int | None = None
    num_warps: int | None = None
    num_stages: int | None = None

    def axes(self) -> dict[str, int]:
        """The launch parameters this point sets, as keyword arguments for the provider."""
        return {name: value for name, value in asdict(self).items() if name in AXES and value is not None}

    def __str__(self) -> str:
        axes = "".join(f" {name}={value}" for name, value in self.axes().items())
        return f"{self.kernel}/{self.provider} size={self.size} {self.dtype}{axes}"
