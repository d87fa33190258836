"""``bench`` in this process on a real GPU: graphs, what they can't hold, and the second context."""

from __future__ import annotations

import pytest
import torch

from kernel_pipeline import BenchError, bench, check, compare
from kernel_pipeline.records.ceilings import Rates

pytestmark = pytest.mark.gpu

ROWS, COLUMNS = 4096, 781


def make(seed: int) -> torch.Tensor:
    generator = torch.Generator("cuda").manual_seed(seed)
    return torch.randn(ROWS, COLUMNS, device="cuda", generator=generator)


def softmax(x: torch.Tensor) -> torch.Tensor:
    return torch.softmax(x, -1)


def test_a_function_is_timed_by_graphs_in_the_fast_mode() -> None:
    # Given, since ceilings measured beside other tests would be too low.
    rates = Rates(copy_gbps=8000.0, matmul_tflops={"float32": 100.0})
    bytes_ = 2 * ROWS * COLUMNS * 4
    result = bench(softmax, make=make, reference=softmax, bytes=bytes_, cache="both", ceilings=rates)
    assert result.valid and (result.timer, result.cache) == ("graph", "cold"), result
    assert result.hot is not None and result.hot.median_us < result.median_us
    assert result.host_us is not None and result.gbps is not None
    assert result.of_ceiling == pytest.approx(result.gbps / 8000.0)


@pytest.mark.alone
def test_the_memory_of_the_second_context_is_given_back() -> None:
    bench(softmax, make=make)  # cuBLAS, the graphs' pool and the like stay
    free, _ = torch.cuda.mem_get_info()
    bench(softmax, make=make)
    assert torch.cuda.mem_get_info()[0] > free - (200 << 20)


def test_without_a_second_context_the_interval_says_so() -> None:
    with_it, without = (bench(torch.square, make=make, context=context) for context in (True, False))
    assert any("the mode of the launch gap is not known" in note for note in without.notes)
    assert without.interval[0] < with_it.interval[0]


def test_what_a_graph_cannot_hold_is_timed_by_events() -> None:
    result = bench(lambda x: x * float(x[0, 0].item()), make=make)
    assert result.timer == "event" and result.valid
    assert any("the function can't be captured into a CUDA graph" in note for note in result.notes)


def test_a_stream_of_its_own_is_refused() -> None:
    stream = torch.cuda.Stream()
    out = torch.empty(ROWS, COLUMNS, device="cuda")

    def elsewhere(x: torch.Tensor) -> torch.Tensor:
        with torch.cuda.stream(stream):
            torch.square(x, out=out)
        return out

    with pytest.raises(BenchError, match="is captured as an empty graph"):
        bench(elsewhere, make=make)


def test_both_passes_several_outputs_and_in_place_functions() -> None:
    both = bench(torch.nn.functional.gelu, make=make, backward=True)
    assert both.valid and both.forward is not None and both.forward.median_us < both.median_us
    assert bench(lambda x: torch.max(x, dim=-1), make=make).valid
    assert bench(lambda x: x.mul_(0.5), make=make).valid


def test_check_and_compare() -> None:
    assert check(softmax, make=make, reference=softmax).ok
    found = compare({"softmax": softmax, "twice": lambda x: softmax(softmax(x))}, make=make)
    assert found["twice"].verdict == "slower"


def test_another_gpu_than_the_current_one() -> None:
    if torch.cuda.device_count() < 2:
        pytest.skip("this host has one GPU")
    result = bench(softmax, make=lambda seed: make(seed).to("cuda:1"), reference=softmax)
    assert result.valid and result.timer == "graph", result
    assert result.device == torch.cuda.get_device_name(1)
    assert torch.cuda.current_device() == 0


def test_inference_mode_inside_of_the_function_and_around_the_call() -> None:
    inside = bench(torch.inference_mode()(softmax), make=make, reference=softmax)
    with torch.inference_mode():
        around = bench(softmax, make=make, reference=softmax)
        with pytest.raises(BenchError, match="records none"):
            bench(softmax, make=make, backward=True)
    for result in (inside, around):
        assert result.valid and result.timer == "graph", result


def into(x: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
    return torch.square(x, out=out)


def halves(x: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
    """Write the right values into one half of the output alone."""
    torch.square(x[: ROWS // 2], out=out[: ROWS // 2])
    return out


def test_an_output_that_is_handed_in_is_checked() -> None:
    out = torch.zeros(ROWS, COLUMNS, device="cuda")

    def right(x: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
        return torch.square(x)

    def both(seed: int) -> tuple[torch.Tensor, ...]:
        return make(seed), torch.zeros(ROWS, COLUMNS, device="cuda")

    for result in (
        bench(into, make=both, reference=right),
        bench(into, make=make, keywords={"out": out}, reference=right),
        bench(lambda x: into(x, out), make=make, reference=right),
    ):
        assert result.valid and result.timer == "graph", result
    half = bench(halves, make=both, reference=right)
    assert not half.valid and half.why.startswith("the output is wrong"), half
