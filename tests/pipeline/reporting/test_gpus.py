"""GPU against GPU: what three GPUs' ledgers say of each other."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from kernel_pipeline.records.measurement import Measurement
from pipeline import report
from pipeline.command.options import ReportConfig
from pipeline.reporting import gpus
from pipeline.reporting.frames import frame, frame_of_finals
from pipeline.store.finals import Final
from tests.factory import CPU, H100, H200, ceilings, final, measurement, write_results

SLOW = "nvidia-slow"
"""A GPU whose ceiling is 2000 GB/s, and which takes 2.2 times as long as an H200."""

WIDE, NARROW = {"block_size": 4096, "num_warps": 8}, {"block_size": 512, "num_warps": 4}


def ledgers() -> list[Measurement]:
    """At 1024 columns a wide block is best everywhere; at 4096 the slow GPU wants a narrow one, and the H100
    lacks the wide one. What a CPU gave, what is not to be trusted, and what one alone has, count nowhere."""
    times = {
        (H200, 1024): (10.0, 12.0),
        (H200, 4096): (20.0, 25.0),
        (SLOW, 1024): (22.0, 30.0),
        (SLOW, 4096): (55.0, 44.0),
        (H100, 1024): (14.0, 15.0),
    }
    rows = [
        measurement("softmax", "cuda", size, gpu=gpu, median_us=us, **launch)
        for (gpu, size), both in times.items()
        for launch, us in zip((WIDE, NARROW), both, strict=True)
    ]
    rows += [
        measurement("softmax", "cuda", 4096, gpu=H100, median_us=30.0, **NARROW),
        measurement("softmax", "torch", 4096, gpu=SLOW, median_us=1.0, valid=False),
        measurement("softmax", "cuda", 16384, gpu=H200, median_us=90.0, **WIDE),
        measurement("softmax", "torch", 4096, gpu=CPU, median_us=900.0),
        measurement("gelu", "cuda", 1024, gpu=H200, median_us=9.0),
    ]
    return rows


def compared(
    rows: list[Measurement], finals: Sequence[Final] = ()
) -> tuple[dict[tuple[str, str, str], gpus.CommonProblem], list[gpus.OtherSources]]:
    common, others = gpus.compared(frame(rows), frame_of_finals(finals))
    return {(one.a, one.b, one.extent): one for one in common}, others


def test_every_pair_of_gpus_meets_at_the_problems_that_both_were_swept_at() -> None:
    met, others = compared(ledgers())
    pairs = ((H100, H200), (H100, SLOW), (H200, SLOW))
    assert set(met) == {(*pair, size) for pair in pairs for size in ("1024", "4096")}
    assert not others
    one = met[H200, SLOW, "1024"]
    assert one.ratio == pytest.approx(2.2)
    assert one.by_ceilings == pytest.approx(ceilings(H200).copy_gbps / ceilings(SLOW).copy_gbps, rel=1e-3)


def test_it_is_said_what_the_best_of_the_one_costs_on_the_other() -> None:
    met, _ = compared(ledgers())
    same, other, alone = (
        met[key] for key in ((H200, SLOW, "1024"), (H200, SLOW, "4096"), (H100, H200, "4096"))
    )
    assert not same.differs and (same.a_on_b, same.b_on_a) == (1.0, 1.0)
    assert other.differs and (other.a_best, other.b_best) == ("cuda 4096x8w", "cuda 512x4w")
    assert other.a_on_b == pytest.approx(55 / 44) and other.b_on_a == pytest.approx(25 / 20)
    assert alone.a_on_b == pytest.approx(25 / 20)
    assert alone.b_on_a is None, "the H100 was not measured with the H200's best"


def test_problems_are_grouped_by_what_bounds_them() -> None:
    rows = [
        measurement(kernel, provider, size, dtype, gpu=gpu, median_us=us * factor)
        for kernel, provider, size, dtype, us in (
            ("softmax", "cuda", 1024, "float32", 4.0),  # shorter than a launch is long
            ("softmax", "cuda", 4096, "float32", 40.0),
            ("gelu", "cuda", 8192, "float32", 90.0),
            ("matmul", "torch", 4096, "bfloat16", 200.0),
        )
        for gpu, factor in ((H100, 1.0), (H200, {4.0: 1.0, 200.0: 0.9}.get(us, 0.7)))
    ]
    common, _ = gpus.compared(frame(rows), frame_of_finals([]))
    found = {one.bound: one for one in gpus.groups(common)}
    assert {bound: (one.kernels, one.problems) for bound, one in found.items()} == {
        "memory": (("gelu", "softmax"), 2),
        "compute": (("matmul",), 1),
        "launch": (("softmax",), 1),
    }
    ratios = [round(one.ratio, 3) for one in found.values()]
    assert ratios == [0.7, 0.9, 1.0]


def test_finals_count_where_both_had_them_and_providers_of_other_sources_do_not() -> None:
    rows = [
        measurement("softmax", "cuda", 4096, gpu=gpu, median_us=us, source="one")
        for gpu, us in ((H100, 30.0), (H200, 15.0))
    ]
    held = [final(rows[0], 28.0), final(rows[1], 21.0)]
    met, _ = compared(rows, held)
    (one,) = met.values()
    assert one.by_finals and one.ratio == pytest.approx(21 / 28)
    (one,) = compared(rows, held[:1])[0].values()
    assert not one.by_finals and one.ratio == pytest.approx(0.5), "one of the two had none"

    # Both have finals, but of no problem together.
    small = [
        measurement("softmax", "cuda", 1024, gpu=gpu, median_us=us, source="one")
        for gpu, us in ((H100, 12.0), (H200, 11.0))
    ]
    met, _ = compared([*rows, *small], [*held, final(small[0], 10.0)])
    assert [(one.extent, one.by_finals, one.b_us) for one in met.values()] == [
        ("1024", False, 11.0),
        ("4096", True, 21.0),
    ]
    met, _ = compared([*rows, *small], [held[1], final(small[0], 10.0)])
    assert [(one.extent, one.by_finals) for one in met.values()] == [("1024", False), ("4096", False)]

    rewritten = [measurement("softmax", "cuda", 4096, gpu=H200, median_us=5.0, source="two"), rows[0]]
    met, others = compared(rewritten)
    assert not met and others == [gpus.OtherSources("softmax", H100, H200, 1)]
    torch = [measurement("softmax", "torch", 4096, gpu=gpu, median_us=40.0) for gpu in (H100, H200)]
    met, others = compared([*rewritten, *torch])
    (one,) = met.values()
    assert (one.a_best, one.b_best, others) == ("torch", "torch", []), "what ran the same code is compared"


def test_the_report_sets_gpu_against_gpu(tmp_path: Path) -> None:
    rows = [*ledgers(), measurement("gelu", "torch", 1024, gpu=SLOW, source="another")]
    folder = write_results(tmp_path / "results", rows)
    report.run(ReportConfig(input=folder, output=tmp_path / "reports", device="cpu"))
    text = (tmp_path / "reports/report.md").read_text()
    (line,) = [one for one in text.splitlines() if one.startswith("| NVIDIA H200 | NVIDIA SLOW | memory")]
    cells = [cell.strip() for cell in line.strip("|").split("|")]
    assert cells == ["NVIDIA H200", "NVIDIA SLOW", "memory", "2", "2.20", "2.14", "softmax"]
    page = (tmp_path / "reports/report.html").read_text()
    assert "cuda 512x4w" in page and "softmax: GPU against GPU" in page, "one by one"
    for shown in (text, page):
        assert "Not comparable on NVIDIA H200 and NVIDIA SLOW: other sources. gelu (1 problem)." in shown


def test_where_no_two_gpus_can_be_compared_a_line_says_so(tmp_path: Path) -> None:
    rows = [measurement("softmax", "cuda", 4096, gpu=gpu, source=gpu) for gpu in (H100, H200)]
    folder = write_results(tmp_path / "results", rows)
    report.run(ReportConfig(input=folder, output=tmp_path / "reports", device="cpu"))
    for name in ("report.md", "report.html"):
        shown = (tmp_path / "reports" / name).read_text()
        assert "No two GPUs have measured the same problem with the same source of a provider." in shown


def test_a_problem_without_ceilings_has_an_unknown_bound() -> None:
    rows = [
        row.replace(rate=row.rate and row.rate.replace(bound=None, ceiling_fraction=None))
        for row in ledgers()
    ]
    met, _ = compared(rows)
    assert met[H200, SLOW, "4096"].bound == gpus.UNKNOWN
    assert "bound by an unknown limit" in " ".join(
        gpus.sentence(one) for one in gpus.groups(list(met.values()))
    )
