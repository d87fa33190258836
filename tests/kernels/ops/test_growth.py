"""Times that are predicted from the steps of launches, by hand and with the products that declare them."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from pytest import approx

from kernel_pipeline import loading, ops, problems
from kernel_pipeline.contract import Gpu, Kernel, Provider, Tolerance, Work, one_of
from kernel_pipeline.ops import chooser, growth, prediction, rule, tuned
from kernel_pipeline.ops.choice import Choice
from kernel_pipeline.ops.growth import Growth
from kernel_pipeline.ops.rule import Tuned
from kernel_pipeline.ops.table import Configuration, TunedRegion
from kernel_pipeline.ops.tuned_problems import words_text
from kernels.attention.parameters import Split, WarpSpecialized
from kernels.attention_backward import parameters as backward_parameters
from kernels.matmul_int4.parameters import Warps
from kernels.matmul_int4.problem import Problem as Int4
from kernels.transposed_tiles import Wgmma

GPU = Gpu((9, 0), 132, 227 << 10, 50 << 20)


@dataclass(frozen=True, kw_only=True)
class Problem:
    """Blocks of work."""

    blocks: int


@dataclass(frozen=True, kw_only=True)
class Size:
    """The blocks that one block of the launch takes."""

    size: int = one_of(1, 2, default=1, unit="")


def waves(problem: Problem, parameters: Size | None, gpu: Gpu) -> float:
    size = 1 if parameters is None else parameters.size
    return size * -(-problem.blocks // (gpu.multiprocessors * size))


def kernel(of_torch: object = waves) -> Kernel:
    return Kernel(
        problem=Problem,
        size=("blocks",),
        work=lambda problem: Work(problem.blocks, {}),
        tolerance=lambda problem: Tolerance(0.0, 0.0),
        providers=(
            Provider("torch", "torch.py:f", steps=of_torch),  # type: ignore[arg-type]
            Provider("cuda", "cuda.cu:f", Size, steps=waves),
        ),
    )


CONFIGURATIONS = {f"cuda {size}": Configuration("cuda", {"size": size}) for size in (1, 2)}
GROWTH = Growth(kernel(), CONFIGURATIONS, GPU)


def known_at(blocks: int, us: float, **near: float) -> Tuned:
    labels = {f"cuda {name[1:]}": ratio for name, ratio in near.items()}
    return Tuned({"blocks": blocks}, True, labels, us=us, baseline_us=2 * us)


def picked(known: list[Tuned], blocks: int, gpu: Gpu | None = GPU, using: Growth = GROWTH) -> str:
    found = using.pick(known, {"blocks": blocks}, True, Problem(blocks=blocks), gpu, lambda label: True)
    return "" if found is None else found.label


def predicted(
    known: list[Tuned], blocks: int, gpu: Gpu | None = GPU, using: Growth = GROWTH
) -> dict[str, float]:
    comparable = rule.neighbours_of(known, {"blocks": blocks}, True, rule.scales(using.kernel), len(known))
    found = using.predicted(comparable, Problem(blocks=blocks), gpu)
    return {label: round(us, 6) for label, us in found.items()}


def test_a_wave_more_takes_twice_as_long() -> None:
    known = [known_at(132, 10.0, s1=1.0, s2=1.2)]
    assert predicted(known, 100) == {"cuda 1": 10.0, "cuda 2": 12.0, "torch": 20.0}
    assert predicted(known, 133) == {"cuda 1": 20.0, "cuda 2": 12.0, "torch": 40.0}
    assert (picked(known, 100), picked(known, 133)) == ("cuda 1", "cuda 2")


def test_another_gpu_has_its_own_waves() -> None:
    known = [known_at(132, 10.0, s1=1.0, s2=1.2)]
    half = replace(GPU, multiprocessors=66)
    assert predicted(known, 132, half) == {"cuda 1": 20.0, "cuda 2": 12.0, "torch": 40.0}
    assert picked(known, 132, half) == "cuda 2"


def test_a_configuration_is_predicted_where_it_was_measured() -> None:
    known = [known_at(128, 10.0, s1=1.0), known_at(264, 24.0, s2=1.0)]
    assert predicted(known, 132)["cuda 1"] == 10.0
    assert predicted(known, 132)["cuda 2"] == 24.0


def test_the_nearer_problem_counts_for_more() -> None:
    known = [known_at(10, 8.0, s1=1.0), known_at(100, 10.0, s1=1.0)]
    assert 8.0 < predicted(known, 11)["cuda 1"] < 8.2
    assert 9.8 < predicted(known, 99)["cuda 1"] < 10.0


def test_a_configuration_that_failed_nearby_or_is_no_longer_taken_is_not_chosen() -> None:
    known = [replace(known_at(132, 10.0, s1=1.0, s2=1.2), failed=frozenset({"cuda 2"}))]
    assert picked(known, 133) == "cuda 1"
    stale = Growth(kernel(), CONFIGURATIONS | {"cuda 2": Configuration("cuda", {"size": 3})}, GPU)
    assert picked([known_at(132, 10.0, s1=1.0, s2=1.2)], 133, using=stale) == "cuda 1"
    deleted = Growth(kernel(), CONFIGURATIONS | {"cuda 2": Configuration("gone", {})}, GPU)
    assert picked([known_at(132, 10.0, s1=1.0, s2=1.2)], 133, using=deleted) == "cuda 1"


def test_a_problem_without_work_is_not_predicted() -> None:
    for there, here in ((132, 0), (0, 132), (-400, 132)):
        assert predicted([known_at(there, 10.0, s1=1.0)], here) == {}
        assert picked([known_at(there, 10.0, s1=1.0)], here) == "cuda 1"


def test_what_no_near_problem_knows_comes_from_farther_ones() -> None:
    known = [known_at(blocks, 10.0, s1=1.0) for blocks in range(126, 132)] + [known_at(396, 50.0, s2=1.0)]
    asked: list[str] = []
    found = GROWTH.pick(
        *(known, {"blocks": 132}, True, Problem(blocks=132), GPU),
        lambda label: bool(asked.append(label)) or label == "cuda 2",
    )
    assert found is not None and (found.label, found.distance) == ("cuda 2", approx(0.011, abs=1e-3))
    assert sorted(asked) == ["cuda 1", "cuda 2"]


def test_a_configuration_that_was_measured_much_farther_away_is_not_chosen() -> None:
    near, far = known_at(132, 10.0, s1=1.0), known_at(132 << 3, 20.0, s2=1.0)
    assert predicted([near, far], 132) == {"cuda 1": 10.0, "cuda 2": 5.0, "torch": approx(19.99, abs=0.02)}
    assert (picked([near, far], 132), picked([near, far], 132 << 2)) == ("cuda 1", "cuda 2")


def test_predicted_times_decide_against_the_baseline() -> None:
    times = {"torch": 11.4, "cuda 1": 10.0, "cuda 2": 12.0}
    ratio = prediction.speedup_of(times, kernel(), "cuda 1")
    assert ratio == approx(1.14) and prediction.speedup_of({}, kernel(), "cuda 1") is None
    assert prediction.is_clearly_faster([], "cuda 1", by_steps=ratio)
    assert not prediction.is_clearly_faster([], "cuda 1", prediction.ELSEWHERE_MARGIN, by_steps=ratio)
    assert not prediction.is_faster_all_around([], "cuda 1", ratio)
    assert prediction.is_faster_all_around([], "cuda 1", 1.15)


def test_configurations_are_asked_in_the_order_of_their_times() -> None:
    asked: list[str] = []
    known = [known_at(132, 10.0, s1=1.0, s2=1.2)]
    GROWTH.pick(
        *(known, {"blocks": 133}, True, Problem(blocks=133), GPU),
        lambda label: not asked.append(label),  # type: ignore[func-returns-value]
    )
    assert asked == ["cuda 2"], "the others can't be chosen, and may warn"


def test_without_steps_or_a_gpu_the_ratios_count() -> None:
    known = [known_at(132, 10.0, s1=1.0, s2=1.2)]
    plain = replace(kernel(), providers=tuple(replace(one, steps=None) for one in kernel().providers))
    without = Growth(plain, CONFIGURATIONS, GPU)
    for using, gpu in ((without, GPU), (Growth(kernel(), CONFIGURATIONS, None), None)):
        assert predicted(known, 133, gpu, using) == {}
        assert picked(known, 133, gpu, using) == "cuda 1"
    assert (growth.furthest(plain), growth.furthest(kernel())) == (rule.MOST, growth.FURTHEST)


def test_few_problems_are_enough_with_steps() -> None:
    few = TunedRegion(True, 2, 0.1, 0.2, None, 0, None, {})
    plain = loading.load("softmax").kernel
    assert growth.is_safer(kernel(), few, 0.3) and not growth.is_safer(kernel(), few, 0.2)
    assert not growth.is_safer(plain, few, 0.3) and growth.is_safer(plain, replace(few, problems=5), 0.3)


def test_steps_of_one_provider_ask_for_those_of_the_others() -> None:
    with pytest.raises(Exception, match=r"^cuda has steps, but not torch: declare all or none\.$"):
        kernel(of_torch=None)


@pytest.mark.parametrize("name", ["matmul_int4", "matmul_sparse"])
def test_the_steps_of_a_product_grow_with_a_wave(name: str) -> None:
    declared = loading.load(name).kernel
    tiles = Wgmma(block_m=128, block_n=128, split_k=1, stages=4)

    def steps(provider: str, parameters: object, m: int, n: int, k: int) -> float:
        found = declared.provider(provider).steps
        assert found is not None
        return found(declared.problem(m=m, n=n, k=k), parameters, GPU)

    one = steps("cuda_wgmma", tiles, 128, 132 * 128, 4096)
    assert one == 32 + 4, "32 steps of 128 columns, and a block's start and end"
    assert steps("cuda_wgmma", tiles, 128, 133 * 128, 4096) == 64 + 4
    assert steps("cuda_wgmma", tiles, 129, 66 * 128, 4096) == one, "two rows of tiles"
    assert steps("cuda_wgmma", replace(tiles, split_k=2), 128, 66 * 128, 4096) == 16 + 4
    assert steps("torch", None, 4096, 4096, 4096) > steps("torch", None, 4096, 4096, 2048)


def test_the_steps_of_attention_follow_its_blocks() -> None:
    attention = loading.load("attention").kernel

    def steps(provider: str, parameters: object, **problem: Any) -> float:
        found = attention.provider(provider).steps
        assert found is not None
        return found(problems.make(attention.problem, problem), parameters, GPU)

    tiles = WarpSpecialized(block_m=128, block_n=128, stages=2)
    one = {"batch": 1, "heads": 132, "seq_q": 128, "seq_k": 4096}
    start = 1 + 2  # of a block, and of the launch
    assert steps("cuda_flash", tiles, **one) == 32 + start, "32 steps of 128 keys"
    assert steps("cuda_flash", tiles, **one | {"heads": 133}) == 2 * (32 + 1) + 2
    assert steps("cuda_flash", tiles, **one | {"head_dim": 64}) == 0.6 * 32 + start
    assert steps("cuda_flash", tiles, **one | {"head_dim": 96}) == 0.8 * 32 + start
    assert steps("cuda_flash", tiles, **one | {"seq_q": 4096}, causal=True) == 32 * (32 / 2 + 1 / 2 + 1) + 2
    last = {"heads": 33, "seq_q": 512}
    assert steps("cuda_flash", tiles, **one | last, causal=True) == 32 + start, "the longest block"
    assert steps("cuda_flash", tiles, **one | {"seq_q": 1}, causal=True) == 32 + start
    assert steps("cuda_flash", tiles, **one, causal=True) == 32 + start, "no block skips a step"
    few = {"batch": 4, "heads": 132, "kv_heads": 33, "seq_q": 32, "seq_k": 4096}
    assert steps("cuda_flash", tiles, **few) == 4 * (32 + 1) + 2
    assert steps("cuda_flash_packed", tiles, **few) == 32 + start
    assert steps("cuda_flash_packed", tiles, **few, causal=True) == 32 + start
    even = {"batch": 8, "heads": 32, "kv_heads": 4, "seq_q": 512, "seq_k": 512}
    assert steps("cuda_flash_packed", tiles, **even, causal=True) == 8 * (2.5 + 1) + 2, "eight waves"
    across = even | {"seq_q": 200, "seq_k": 200}
    assert steps("cuda_flash_packed", tiles, **across, causal=True) == approx(4 * (12 * 3 + 2) / 13 + 2)
    assert steps("cuda_flash", tiles, **even, causal=True) < 8 * (4 + 1) + 2, "short tiles after long ones"
    tail = {"batch": 1, "heads": 34, "seq_q": 512, "seq_k": 4096}
    assert steps("cuda_flash", tiles, **tail, causal=True) == 2 * (29 + 1) + 2, "two waves of tiles"
    assert steps("sdpa_flash", None, **one) == 32 + 1 / 2 + 1
    longest = 32 * (16 + 1 / 2 + 1 / 2) + 32
    assert steps("sdpa_flash", None, **one | {"seq_q": 4096}, causal=True) == longest + 1, "comes last"
    split = Split(split_k=4, block_n=64)
    assert steps("triton_split_k", split, **few) == 2 * 16 + 4
    assert steps("triton_split_k", split, **few | {"batch": 1}) == 16 + 4


def test_the_steps_of_the_backward_pass_follow_its_blocks_of_keys() -> None:
    backward = loading.load("attention_backward").kernel

    def steps(provider: str, parameters: object, **problem: Any) -> float:
        found = backward.provider(provider).steps
        assert found is not None
        return found(problems.make(backward.problem, problem), parameters, GPU)

    tiles = backward_parameters.WarpSpecialized(block_m=64, stages=2, split=1)
    split = replace(tiles, split=4)
    few = {"batch": 1, "heads": 32, "kv_heads": 2, "seq_q": 4096}
    by_key_heads, by_parts = steps("cuda_flash", tiles, **few), steps("cuda_flash", split, **few)
    assert 16 * 64 < by_key_heads < 1.3 * 16 * 64, "64 blocks, each with 64 tiles of 16 heads"
    assert by_key_heads / by_parts == pytest.approx(2, rel=0.1), "256 blocks with a quarter of the tiles"
    assert steps("cuda_flash", tiles, **few, causal=True) == pytest.approx(by_key_heads, rel=0.05), (
        "the longest"
    )
    many = few | {"kv_heads": 32}
    assert steps("cuda_flash", tiles, **many, causal=True) < 0.6 * steps("cuda_flash", tiles, **many)
    with_96 = steps("cuda_flash", tiles, **many | {"head_dim": 96})
    assert with_96 == pytest.approx(steps("cuda_flash", tiles, **many), rel=0.05), "tiles of 128 columns"
    assert steps("sdpa_flash", None, **few) == steps("sdpa_flash", None, **many)
    one, two = (
        steps("triton_flash", backward_parameters.Flash(), **many | {"batch": batch}) for batch in (1, 2)
    )
    assert 1.8 * one < two < 2.2 * one
    short = few | {"heads": 8, "seq_q": 185, "head_dim": 64}
    by_triton = steps("triton_flash", backward_parameters.Flash(block=64, block_step=64), **short)
    assert by_triton > 1.8 * steps("sdpa_flash", None, **short), "36.0 and 31.7 us on an H200"


def test_the_steps_of_few_rows_grow_with_instructions_of_eight_rows() -> None:
    steps = loading.load("matmul_int4").kernel.provider("cuda").steps
    assert steps is not None
    warps = Warps(tiles_n=2, warps_k=8, split_k=1)
    times = [steps(Int4(m=m, n=4096, k=8192), warps, GPU) for m in (1, 8, 9, 16, 17, 32)]
    assert times == [8 + 4, 8 + 4, 16 + 4, 16 + 4, 32 + 4, 32 + 4]


@pytest.mark.parametrize(
    ("m", "line"),
    [
        (256, r"torch, [\d.]+ us, (finals|sweep), with inputs .* once"),
        (300, r"torch, about [\d.]+ us, with .* once"),
    ],
)
def test_ops_says_what_the_product_with_weights_in_16_bits_takes(m: int, line: str) -> None:
    made = Int4(m=m, n=8192, k=8192)
    x, packed, scales = (
        torch.empty(shape, dtype=dtype, device="meta")
        for shape, dtype in (
            ((m, 8192), torch.bfloat16),
            (made.packed_shape, torch.int32),
            (made.scales_shape, torch.bfloat16),
        )
    )
    found = ops.explain(ops.matmul_int4, x, packed, scales, gpu="nvidia-h200")
    assert found.choice.provider != "torch" and found.time is not None and not found.time.is_prepared
    assert found.baseline is not None and found.baseline.is_prepared
    assert re.search(rf"^  baseline   {line}$", str(found), re.MULTILINE)


def test_the_time_of_dense_weights_is_not_that_of_a_call_of_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chooser, "rule_digest", lambda: "another")
    monkeypatch.setattr(tuned.table_files, "sibling", lambda *of: None)
    made = loading.load("matmul_sparse").kernel.problem(m=64, n=8192, k=8192)
    on_meta = [torch.empty(64, 8192, dtype=torch.bfloat16, device="meta")]
    on_meta.append(torch.empty(made.values_shape, dtype=torch.bfloat16, device="meta"))
    on_meta.append(torch.empty(made.metadata_shape, dtype=torch.int32, device="meta"))
    found = ops.explain(ops.matmul_sparse, *on_meta, gpu="nvidia-h200")
    assert (found.choice.provider, found.time) == ("torch", None)
    assert found.baseline is not None and found.baseline.is_prepared


def test_another_gpus_choice_is_compared_by_predicted_times() -> None:
    loaded = loading.load("matmul_int4")
    _, made = tuned.chosen(loaded, Int4(m=300, n=8192, k=8192), GPU, "nvidia-h200", warns=False)
    assert made is not None and made.picked is not None
    times = {label: us for label, us in made.predicted.items() if label in made.tuned.configurations}
    best, slowest = made.picked.label, max(times, key=times.__getitem__)
    assert times[slowest] > prediction.ELSEWHERE_MARGIN * times[best]
    for label, is_faster in ((slowest, True), (best, False)):
        one = made.tuned.configurations[label]
        assert made.is_faster_than(Choice(one.provider, one.parameters, "default", "")) is is_faster


def test_a_default_gives_way_to_a_choice_that_is_clearly_faster_by_predicted_times(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    loaded = loading.load("attention_backward")
    shape = {"batch": 4, "heads": 16, "kv_heads": 8, "seq_q": 1900, "seq_k": 1900, "head_dim": 128}
    problem = problems.make(loaded.kernel.problem, {**shape, "causal": True, "dtype": "bfloat16"})
    _, made = tuned.chosen(loaded, problem, GPU, "nvidia-h200", warns=False)
    assert made is not None and made.picked is not None and made.region is not None
    region, best = made.region, made.picked.label
    times = {label: us for label, us in made.predicted.items() if made.against(label) is None}
    slow = max(times.keys() - {"sdpa_flash"}, key=times.__getitem__)
    near = next(label for label, us in times.items() if label != best and us < 1.1 * times[best])
    for default, how, called in ((slow, "guessed", best), (near, "default", near)):
        # The regret of the rule says too little for it to be trusted.
        known = {words_text(made.values): {default: 0.0}}
        changed = replace(region, distance=None, regret_p90=1.0, fallback=known)
        monkeypatch.setattr(chooser.Chooser, "region", property(lambda _, changed=changed: changed))
        assert (made.fallback("").how, made.label_of(made.fallback(""))) == (how, called)
