"""The map of the fastest providers."""

from __future__ import annotations

from pipeline.reporting.provider_map import Spot, provider_map


def spot(m: int, n: int, times: dict[str, float], words: str = "bfloat16") -> Spot:
    return Spot({"m": m, "n": n, "k": 64}, words, times)


def test_the_x_axis_is_from_left_to_right_and_the_other_numbers_are_downwards() -> None:
    spots = [
        spot(1, 128, {"torch": 3.0, "cuda": 2.0}),
        spot(16, 128, {"torch": 3.0, "cuda": 4.0}),
        spot(1, 256, {"cuda": 1.0}),
        spot(16, 256, {"torch": 6.0, "cuda": 5.0, "triton": 4.0}),
    ]
    assert provider_map(spots, ("m",), "torch") == [
        ["problem", "dtype", "m = 1", "m = 16"],
        ["n=128 k=64", "bfloat16", "`cuda` 1.50", "`torch`"],
        ["n=256 k=64", "bfloat16", "`cuda`", "`triton` 1.50"],
    ]


def test_words_have_rows_of_their_own_and_a_size_is_shown_once() -> None:
    spots = [
        Spot({"m": size, "n": size}, words, {"torch": 2.0, "cuda": 1.0})
        for words in ("bfloat16", "float16")
        for size in (64, 128)
    ]
    assert provider_map(spots, ("m", "n"), "torch") == [
        ["dtype", "m = n = 64", "m = n = 128"],
        ["bfloat16", "`cuda` 2.00", "`cuda` 2.00"],
        ["float16", "`cuda` 2.00", "`cuda` 2.00"],
    ]


def test_what_is_not_timed_is_empty_or_left_out() -> None:
    spots = [spot(1, 128, {"torch": 1.0}), spot(16, 128, {}), spot(1, 256, {})]
    assert provider_map(spots, ("m",), "torch") == [
        ["problem", "dtype", "m = 1", "m = 16"],
        ["n=128 k=64", "bfloat16", "`torch`", ""],
    ]
    assert provider_map([spot(1, 128, {})], ("m",), "torch") == []
