"""GPU against GPU: what three GPUs' ledgers say of each other."""

from __future__ import annotations

import json
from math import log
from pathlib import Path

import pytest

from pipeline import report
from pipeline.command.options import ReportConfig
from pipeline.reporting import gpus
from pipeline.reporting.frames import frame
from pipeline.reporting.landscapes import landscapes, timed, varied
from pipeline.store.record import Measurement
from tests.factory import CPU, H100, H200, ceilings, measurement, write_results

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


def met() -> dict[tuple[str, str, str], gpus.CommonProblem]:
    return {(one.a, one.b, one.extent): one for one in gpus.common_problems(frame(ledgers()))}


def test_every_pair_of_gpus_meets_at_the_problems_that_both_were_swept_at() -> None:
    pairs = ((H100, H200), (H100, SLOW), (H200, SLOW))
    assert set(met()) == {(*pair, size) for pair in pairs for size in ("1024", "4096")}


def test_the_ceilings_explain_a_share_of_the_difference() -> None:
    one = met()[H200, SLOW, "1024"]
    by_ceilings = ceilings(H200).copy_gbps / ceilings(SLOW).copy_gbps
    assert one.ratio == pytest.approx(2.2)
    assert one.by_ceilings == pytest.approx(by_ceilings, rel=1e-3) and by_ceilings == pytest.approx(2.135)
    assert one.explained == pytest.approx(log(by_ceilings) / log(2.2), rel=1e-3)
    assert gpus.explained(1.01, 2.0) is None, "there is no difference to explain"
    assert gpus.explained(2.0, None) is None
    assert gpus.explained(2.0, 0.5) == pytest.approx(-1), "it should be the faster"


def test_it_is_said_what_the_best_of_the_one_costs_on_the_other() -> None:
    same, other, alone = (
        met()[key] for key in ((H200, SLOW, "1024"), (H200, SLOW, "4096"), (H100, H200, "4096"))
    )
    assert not same.differs and (same.a_on_b, same.b_on_a) == (1.0, 1.0)
    assert other.differs and (other.a_best, other.b_best) == ("cuda 4096x8w", "cuda 512x4w")
    assert other.a_on_b == pytest.approx(55 / 44) and other.b_on_a == pytest.approx(25 / 20)
    assert alone.a_on_b == pytest.approx(25 / 20)
    assert alone.b_on_a is None, "the H100 was not measured with the H200's best"

    (pair,) = [one for one in gpus.pairs(met().values()) if (one.a, one.b) == (H200, SLOW)]
    assert (pair.problems, pair.differing) == (2, 1) and pair.ratio == pytest.approx(2.2)
    assert pair.a_on_b == pytest.approx(1.25**0.5) and pair.worst == pytest.approx(1.25)


def test_the_report_sets_gpu_against_gpu(tmp_path: Path) -> None:
    folder = write_results(tmp_path / "results", ledgers())
    report.run(ReportConfig(input=folder, output=tmp_path / "reports", device="cpu"))
    text = (tmp_path / "reports/report.md").read_text()
    (line,) = [
        one for one in text.splitlines() if one.startswith("| softmax") and "H200 | NVIDIA SLOW" in one
    ]
    cells = [cell.strip() for cell in line.strip("|").split("|")]
    assert cells[:5] == ["softmax", "float32", "NVIDIA H200", "NVIDIA SLOW", "2"]
    assert cells[5:] == ["2.20", "2.14", "96 %", "1 of 2", "1.12", "1.12", "1.25"]
    page = (tmp_path / "reports/report.html").read_text()
    assert "cuda 512x4w" in page and "by ceilings 2.14" in page, "one by one, and drawn"
    assert page.count("<figcaption>NVIDIA SLOW / NVIDIA H200") == 1


def test_one_gpu_meets_nobody(tmp_path: Path) -> None:
    folder = write_results(tmp_path / "results", [measurement(size=size) for size in (256, 1024)])
    report.run(ReportConfig(input=folder, output=tmp_path / "reports", device="cpu"))
    for name in ("report.md", "report.html"):
        assert "GPU against GPU" not in (tmp_path / "reports" / name).read_text()


def test_a_landscape_has_the_two_parameters_that_most_rows_vary() -> None:
    tiles = [{"block_m": m, "block_n": n} for m in (64, 128) for n in (64, 128, 256)]
    rows = [measurement("matmul", "triton_tiled", 1024, "bfloat16", **one) for one in tiles]
    rows += [measurement("matmul", "triton_tiled", 512, "bfloat16", num_warps=w) for w in (4, 8)]
    assert varied(frame(rows)) == ("block_m", "block_n"), "two rows alone vary num_warps"
    assert varied(frame(rows[-2:])) is None
    (found,) = landscapes(timed(frame(rows)), {H200: "NVIDIA H200"})
    assert (found["across"], found["down"]) == (
        {"name": "block_m", "values": ["64", "128"]},
        {"name": "block_n", "values": ["64", "128", "256"]},
    )
    (one,) = [one for one in found["maps"] if one["problem"] == "1024"]
    assert one["unit"] == "TFLOP/s" and len(one["cells"]) == 6
    assert json.loads(json.dumps(found)) == found
