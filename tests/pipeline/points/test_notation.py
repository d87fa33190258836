"""Points in words, and the words of a variant."""

import pytest

from kernel_pipeline.declared import Value
from kernel_pipeline.errors import UserError
from kernel_pipeline.records.base import Values
from kernel_pipeline.records.point import Point
from pipeline.points import catalog, notation
from pipeline.points.notation import Variant


@pytest.mark.parametrize(
    ("kernel", "words", "pins"),
    [
        ("softmax", "triton_row", {}),
        ("softmax", "triton_row/128/8w", {"size": 128, "num_warps": 8}),
        (
            "softmax",
            "triton_online/1024x8w/bfloat16",
            {"block_size": 1024, "num_warps": 8, "dtype": "bfloat16"},
        ),
        ("softmax", "triton_row/num_warps=8/rows=37", {"num_warps": 8, "rows": 37}),
        # What labels leave out at its default has its default in a configuration that does not name it.
        (
            "softmax",
            "cuda/1024x8w",
            {"block_size": 1024, "num_warps": 8, "strategy": "auto", "cluster_size": 0, "stages": 0},
        ),
        (
            "softmax",
            "cuda/8192x8w,strategy=persistent",
            {"block_size": 8192, "num_warps": 8, "strategy": "persistent", "cluster_size": 0, "stages": 0},
        ),
        ("softmax", "cuda/4096", {"size": 4096}),
        ("matmul", "triton_tiled/tf32/m=16", {"arithmetic": "tf32", "m": 16}),
        ("matmul", "triton_tiled/64x32x8w", {"block_m": 64, "block_n": 32, "num_warps": 8}),
    ],
)
def test_words_pin_what_the_kernel_declares(kernel: str, words: str, pins: dict[str, Value]) -> None:
    chosen = Variant.read(words, catalog.find(kernel))
    assert chosen.pins == {name: (value,) for name, value in pins.items()}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("trton_row", "unknown provider of softmax 'trton_row'. Did you mean 'triton_row'?"),
        ("triton_row/float23", "can't read 'float23' in 'triton_row/float23': write a configuration (4w)"),
        ("triton_row/1024x8w", "can't read '1024x8w'"),
    ],
)
def test_words_that_mean_nothing(words: str, said: str) -> None:
    with pytest.raises(UserError) as raised:
        Variant.read(words, catalog.find("softmax"))
    assert str(raised.value).startswith(said)


def test_a_point_in_words() -> None:
    problem = Values({"rows": 37, "columns": 4096, "dtype": "bfloat16"})
    point = Point(
        kernel="softmax",
        provider="triton_online",
        problem=problem,
        parameters=Values({"block_size": 1024, "num_warps": 8}),
    )
    assert notation.label(point) == "triton_online 1024x8w"
    assert notation.file_name(point) == "triton_online-bfloat16-1024x8w-rows=37-columns=4096"


def test_a_default_that_is_left_out() -> None:
    parameters = {"block_size": 8192, "num_warps": 8, "strategy": "auto", "cluster_size": 0, "stages": 0}
    problem = Values({"rows": 4096, "columns": 4096, "dtype": "bfloat16"})

    def label(**other: Value) -> str:
        values = Values({**parameters, **other})
        return notation.label(Point(kernel="softmax", provider="cuda", problem=problem, parameters=values))

    assert label() == "cuda 8192x8w"
    assert label(strategy="persistent", stages=4) == "cuda 8192x8w,strategy=persistent,stages=4"
