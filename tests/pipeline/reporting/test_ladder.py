"""Bars of each provider at one problem, from the slowest to the fastest."""

from __future__ import annotations

from xml.etree import ElementTree

from pipeline.reporting.frames import best_configurations, frame
from pipeline.reporting.ladder import ladder, rungs
from pipeline.reporting.plots import Panel, styles
from pipeline.store.record import Measurement
from tests.factory import H100, H200, measurement

SVG = "{http://www.w3.org/2000/svg}"
US = {"torch": 40.0, "cuda": 20.0, "triton_online": 25.0, "triton_row": 30.0}


def rows(gpus: tuple[str, ...] = (H200,)) -> list[Measurement]:
    """Four providers at 1024 columns, two at 4096."""
    few = [measurement("softmax", name, 4096, median_us=60.0, gpu=H200) for name in ("torch", "cuda")]
    many = [
        measurement("softmax", name, 1024, median_us=us, gpu=gpu) for gpu in gpus for name, us in US.items()
    ]
    return [*many, *few]


def words(svg: str) -> list[str]:
    return ["".join(one.itertext()).strip() for one in ElementTree.fromstring(svg).iter(f"{SVG}text")]


def drawn(gpus: tuple[str, ...]) -> str:
    best = best_configurations(frame(rows(gpus)))
    panels = [Panel(gpu, gpu.upper(), None) for gpu in (H200, H100)]
    return ladder("softmax", rungs(best), panels, styles(best["provider"]))


def test_it_is_of_the_problem_with_the_most_providers() -> None:
    assert set(rungs(best_configurations(frame(rows())))["extent"]) == {"1024"}


def test_two_providers_are_none() -> None:
    two = [measurement("softmax", name, 1024, median_us=us) for name, us in list(US.items())[:2]]
    assert rungs(best_configurations(frame(two))).empty


def test_the_slowest_is_at_the_top_and_each_has_its_rate() -> None:
    shown = words(drawn((H200,)))
    names = [word for word in shown if word in US]
    assert names == ["torch", "triton_row", "triton_online", "cuda"]
    assert "GB/s" in shown and f"{H200.upper()} · float32 · 1024" in shown
    rates = [float(word) for word in shown[shown.index("GB/s") + 1 :] if word.replace(".", "").isdigit()]
    assert len(rates) >= len(US) and rates == sorted(rates)


def test_a_machine_without_the_problem_has_no_panel() -> None:
    assert f"{H100.upper()} · float32 · 1024" not in words(drawn((H200,)))
    assert f"{H100.upper()} · float32 · 1024" in words(drawn((H200, H100)))
