"""The words of a variant pin one point of the grid."""

from __future__ import annotations

from typing import Any

import pytest

import kernels
from pipeline.measure.variant import Variant

VALUES: dict[str, tuple[Any, ...]] = {
    "size": (64, 128),
    "rows": (None,),
    "dtype": ("float32",),
    "block_size": (256,),
    "num_warps": (4,),
    "num_stages": (2,),
}


@pytest.mark.parametrize(
    ("kernel", "words", "size", "rows"),
    [
        ("softmax", "triton_row", (64,), (4096,)),
        ("softmax", "triton_row/128/8w", (128,), (4096,)),
        ("softmax", "triton_row/8w/37x128", (128,), (37,)),
        ("square", "triton_row/128", (128,), None),
    ],
)
def test_a_shape_is_pinned_with_its_rows(
    kernel: str, words: str, size: tuple[int], rows: tuple[int] | None
) -> None:
    pins = Variant.read(words, kernels.load(kernel), VALUES, "90").pins()
    assert (pins["size"], pins["rows"], pins["dtype"]) == (size, rows, ("float32",))
    assert pins["num_warps"] == ((8,) if "8w" in words else (4,))


def test_rows_that_are_pinned_hold_for_a_variant_without() -> None:
    pins = Variant.read("triton_row", kernels.load("softmax"), VALUES | {"rows": (3, 5)}, "90").pins()
    assert pins["rows"] == (3,)
