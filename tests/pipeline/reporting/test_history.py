"""Finals over commits: a comparison of two runs of which either had one round says so."""

from pipeline.reporting import history
from tests.factory import final, measurement


def test_a_comparison_with_one_round_is_marked() -> None:
    row = measurement("softmax", "cuda", 1024, block_size=512, num_warps=4)
    rows = [
        final(row, us, run=f"2026110{day}T120000Z-abcdef").model_copy(update={"rounds_us": (us,) * rounds})
        for day, (us, rounds) in enumerate([(20.0, 2), (16.0, 1), (16.0, 2), (8.0, 3)], start=1)
    ]
    (part,) = history.parts(rows)
    assert part.lines == (
        (
            "1024 float32",
            "20.0, cuda 512x4w",
            "16.0, x 1.25 (one round)",
            "16.0, x 1.00 (one round)",
            "8.00, x 2.00",
        ),
    )
