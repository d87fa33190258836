"""The choices by planted tables: between tuned problems, with a margin over torch, and by another GPU's
table."""

import json
import math
import warnings

import pytest

from kernel_pipeline.contract import Gpu
from kernel_pipeline.ops import chooser, table_files, tuned
from kernel_pipeline.ops.choice import Choice
from tests import factory

from .tables import (
    COLUMNS,
    KERNEL,
    LOADED,
    PLANTED,
    Beside,
    Written,
    chosen,
    forget_tables,
    of_workload,
    row,
    some,
)


def test_between_problems_the_rule_is_followed_where_it_is_trusted(written: Written) -> None:
    columns = (256, 300, 512, 600, 1024, 2048, 8192, 16384)
    times = {
        "torch": (20.0,) * 8,
        "cuda 1024x4w": (11.0,) * 5 + (10.0,) * 3,
        "cuda 2048x8w": (10.0,) * 5 + (12.0,) * 3,
    }
    written(some(times, columns))
    found = chosen(400)
    assert (found.provider, found.parameters["block_size"], found.how) == ("cuda", 2048, "generalised")
    assert found.reason == "softmax was not tuned at this problem."
    beyond = chosen(4096)  # three problems are too few to judge the rule
    assert (beyond.provider, beyond.parameters["block_size"], beyond.how) == ("cuda", 1024, "default")


def test_a_problem_at_which_only_torch_was_measured_is_not_tuned(written: Written) -> None:
    rows = some(PLANTED, COLUMNS)
    written([*rows, row("torch", 4096, 20.0)])
    alone = chosen(4096)
    assert (alone.provider, alone.reason) == ("cuda", "softmax was not tuned at this problem.")
    written([*rows, row("torch", 4096, 20.0), row("cuda", 4096, 30.0, block_size=1024, num_warps=4)], "b")
    assert (chosen(4096).provider, chosen(4096).how) == ("torch", "exact")


def test_a_problem_that_an_interrupted_sweep_left_is_tuned_and_misleads_no_other(written: Written) -> None:
    """Our fastest configuration was not measured there, where it would count as slow. A slow one that was
    tried at one problem alone changes nothing."""
    columns = (256, 300, 400, 512, 600, 700)
    fast = {"torch": (20.0,) * 6, "cuda 2048x8w": (10.0,) * 6, "triton_online 1024x8w": (8.0,) * 6}
    left = some({"torch": (20.0,), "cuda 2048x8w": (10.0,)}, (560,))
    tried = some({"triton_online 1024x4w": (50.0,)}, (400,))
    path = written([*some(fast, columns), *left, *tried], "a")
    lacking = [one["lacking"] for one in json.loads(path.read_text())["kernels"][KERNEL]["problems"]]
    assert sorted(lacking) == [*[[]] * 6, ["triton_online 1024x8w"]]
    assert (chosen(560).provider, chosen(560).how) == ("cuda", "exact")
    assert chosen(561).provider == "triton_online"
    path = written([*some(fast, columns), *of_workload("mine", left)], "b")
    assert '"lacking": ["' not in path.read_text(), "another workload's sweep is whole without it"
    assert chosen(561).provider == "cuda"


def test_a_rule_with_too_much_regret_gives_way_to_the_safer_of_default_and_torch(written: Written) -> None:
    columns = (256, 300, 512, 600, 800, 1024)
    # The best of two configurations alternates between problems, and the other takes twice as long.
    times = {
        "cuda 2048x8w": (10.0, 20.0) * 3,
        "triton_online 1024x8w": (20.0, 10.0) * 3,
        "torch": (15.0,) * 6,
        "cuda 1024x4w": (13.0,) * 6,
    }
    written(some(times, columns), "a")
    assert (chosen(400).provider, chosen(400).how) == ("cuda", "default")
    forget_tables()
    times |= {"torch": (12.0,) * 6}
    written(some(times, columns), "b")
    assert (chosen(400).provider, chosen(400).how) == ("torch", "torch")


def test_where_the_safest_default_does_not_fit_the_next_one_is_called(written: Written) -> None:
    """A block of 1024 columns must hold a whole row, so it does not fit rows of 1100."""
    columns = (256, 300, 512, 600, 800, 1024, 1100, 1200)
    times = {
        "cuda 2048x8w": (10.0, 20.0) * 4,
        "triton_online 1024x8w": (20.0, 10.0) * 4,
        "torch": (20.0,) * 8,
        "cuda 1024x4w": (13.0,) * 8,
    }
    rows = some(times, columns)
    rows += [row("triton_tile", size, 11.0, block_size=1024, num_warps=4) for size in columns[:6]]
    content = json.loads(written(rows).read_text())
    (region,) = content["kernels"][KERNEL]["regions"]
    assert region["fallback"] == {
        "dtype=float32": {"triton_tile 1024x4w": 0.1, "cuda 1024x4w": 0.3, "torch": 1.0}
    }
    assert (chosen(700).provider, chosen(700).how) == ("triton_tile", "default")
    assert (chosen(1150).provider, chosen(1150).how) == ("cuda", "default")


def test_further_from_tuned_problems_than_is_trusted_the_rule_is_not_followed(written: Written) -> None:
    """Problems close to 1000 columns share one best configuration. At the other problems the best one
    alternates."""
    columns = (100, 150, 230, 340, 510, 770, *range(1000, 1080, 10))
    times = {
        "cuda 2048x8w": (10.0, 13.0) * 3 + (10.0,) * 8,
        "triton_online 1024x8w": (13.0, 10.0) * 3 + (13.0,) * 8,
        "torch": (11.0,) * 14,
    }
    path = written(some(times, columns))
    (region,) = json.loads(path.read_text())["kernels"][KERNEL]["regions"]
    assert (region["problems"], region["generalised"], region["generalised_p90"]) == (14, 8, 0.0)
    assert region["regret_p90"] == 0.3 and region["distance"] == pytest.approx(math.log2(1010 / 1000))
    assert (chosen(1005).provider, chosen(1005).how) == ("cuda", "generalised")
    assert (chosen(280).provider, chosen(280).how) == ("torch", "torch")


def test_a_rule_that_is_not_trusted_is_followed_where_nothing_else_is_safer(written: Written) -> None:
    """The rule's choices take up to 1.2 times the best time, the default 1.5 times and torch twice."""
    columns = (100, 200, 300, 400, 500, 600, 700, 800)
    times = {
        "cuda 2048x8w": (10.0, 12.0) * 4,
        "triton_online 1024x8w": (12.0, 10.0) * 4,
        "cuda 1024x4w": (15.0,) * 8,
        "torch": (20.0,) * 8,
    }
    path = written(some(times, columns), "a")
    (region,) = json.loads(path.read_text())["kernels"][KERNEL]["regions"]
    assert (region["distance"], region["regret_p90"]) == (None, 0.2)
    assert (chosen(250).how, chosen(250).parameters["num_warps"]) == ("guessed", 8)
    content = json.loads(path.read_text())
    path.write_text(json.dumps(content | {"rule": "another"}))
    forget_tables()
    assert (chosen(250).provider, chosen(250).how) == ("cuda", "default"), "its regrets are another rule's"
    written(some({name: us[:4] for name, us in times.items()}, columns[:4]), "b")
    forget_tables()
    assert (chosen(250).provider, chosen(250).how) == ("cuda", "default"), "four problems say too little"


def test_a_safer_default_gives_way_to_a_choice_that_is_clearly_faster_at_the_neighbours(
    written: Written,
) -> None:
    """The rule goes wrong where the fastest configuration changes, so the default is safer over all."""
    columns = (100, 200, 300, 400, 500, 600, 700, 800)
    times = {
        "cuda 2048x8w": (10.0, 10.0, 10.0, 10.0, 30.0, 10.0, 30.0, 30.0),
        "cuda 1024x4w": (13.0,) * 8,
        "torch": (20.0,) * 8,
    }
    path = written(some(times, columns), "a")
    (region,) = json.loads(path.read_text())["kernels"][KERNEL]["regions"]
    assert region["regret_p90"] > region["fallback"]["dtype=float32"]["cuda 1024x4w"] == 0.3
    assert (chosen(150).how, chosen(150).parameters["block_size"]) == ("guessed", 2048)
    assert (chosen(750).how, chosen(750).parameters["block_size"]) == ("default", 1024)


def test_between_problems_a_choice_that_is_not_clearly_faster_gives_way_to_torch(
    written: Written, monkeypatch: pytest.MonkeyPatch
) -> None:
    columns = (256, 300, 512, 600, 1024)
    times = {"cuda 2048x8w": (10.0,) * 5, "cuda 1024x4w": (12.0,) * 5}
    written(some(times | {"torch": (10.4,) * 5}, columns), "a")
    found = chosen(400)
    assert (found.provider, found.how) == ("torch", "torch")
    assert found.reason == (
        "softmax was not tuned at this problem. cuda is not predicted clearly faster than torch."
    )
    assert (chosen(512).provider, chosen(512).how) == ("cuda", "exact"), "it was measured there"
    written(some(times | {"torch": (10.6,) * 5}, columns), "b")
    assert (chosen(400).provider, chosen(400).how) == ("cuda", "generalised")
    written(some(times, columns), "c")
    assert chosen(400).how == "torch", "torch has no time, so nothing is known to be faster"
    monkeypatch.setattr(chooser, "takes_inputs", lambda provider: provider.name != "torch")
    assert chosen(400).provider == "cuda", "a caller can't get the measured baseline"
    assert (chosen(16000).provider, chosen(16000).how) == ("cuda", "guessed"), "nothing is known beyond L2"


def test_a_baseline_that_is_wrong_in_a_dtype_is_not_called_there_and_counts_in_others(
    written: Written,
) -> None:
    columns = (256, 300, 512, 600, 1024)
    times = {"cuda 2048x8w": (10.0,) * 5, "torch": (10.4,) * 5}
    wrong = factory.measurement(status="incorrect").outcome
    half = [
        one.replace(outcome=wrong, rate=None) if one.point.provider == "torch" else one
        for one in some(times, columns, "bfloat16")
    ]
    written([*some(times, columns), *half])
    assert chosen(400).how == "torch", "cuda is hardly faster in float32"
    assert (chosen(400, "bfloat16").provider, chosen(400, "float16").provider) == ("cuda", "cuda")


def test_a_default_that_is_slower_than_torch_at_a_neighbour_is_not_called(written: Written) -> None:
    """The rule has too much regret, and the default is the safest on average."""
    columns = (256, 300, 512, 600, 800, 1024)
    times = {
        "cuda 2048x8w": (10.0, 20.0) * 3,
        "triton_online 1024x8w": (20.0, 10.0) * 3,
        "cuda 1024x4w": (12.0,) * 6,
    }
    written(some(times | {"torch": (15.0,) * 6}, columns), "a")
    assert (chosen(400).provider, chosen(400).how) == ("cuda", "default")
    written(some(times | {"torch": (10.0, *(18.0,) * 5)}, columns), "b")
    assert (chosen(400).provider, chosen(400).how) == ("torch", "torch")


def test_where_torch_is_the_safest_the_rule_is_followed_if_all_around_it_is_faster(written: Written) -> None:
    """Too few problems tell what regret the rule has, and no default was measured."""
    columns = (256, 300, 512, 600)
    times = {"cuda 2048x8w": (10.0,) * 4, "triton_online 1024x8w": (14.0,) * 4}
    for name, torch, how in (
        ("a", (12.0,) * 4, "guessed"),
        ("b", (12.0, 12.0, 10.2, 12.0), "torch"),  # the neighbour at 512 columns says no
        ("c", (11.2,) * 4, "torch"),  # too little on average
    ):
        written(some(times | {"torch": torch}, columns), name)
        assert chosen(400).how == how, name
    alone = {"cuda 2048x8w": (10.0,), "triton_online 1024x8w": (12.0,)}
    for name, us, how in (("d", 50.0, "torch"), ("e", 150.0, "guessed")):
        written(some(alone | {"torch": (us,)}, (512,)), name)
        assert chosen(400).how == how, "a single neighbour may be a cliff"


def test_for_wider_rows_than_the_nearest_problems_ones_with_a_configuration_that_fits_count(
    written: Written,
) -> None:
    columns = (256, 300, 400, 512, 600, 700)
    narrow = [row("triton_tile", size, 5.0, block_size=1024, num_warps=4) for size in columns]
    rows = [*narrow, *some({"torch": (20.0,) * 6}, columns)]
    wide = of_workload("wide", some({"torch": (200.0,) * 2, "cuda 2048x8w": (100.0,) * 2}, (8192, 16384)))
    written([*rows, *wide], "a")
    found = chosen(8000, rows=64)
    assert (found.provider, found.parameters["block_size"], found.how) == ("cuda", 2048, "guessed")
    forget_tables()
    slow = of_workload("slow", some({"torch": (20.0,), "cuda 1024x4w": (30.0,)}, (900,)))
    written([*rows, *slow, *wide], "b")
    assert chosen(8000, rows=64).provider == "torch", "of the nearest one says that ours was too slow"


def test_a_gpu_without_a_table_uses_that_of_another_of_its_architecture(
    written: Written, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = written(some(PLANTED, COLUMNS))
    monkeypatch.setenv(table_files.VARIABLE, str(path.parent))
    problem = LOADED.kernel.problem(rows=4096, columns=512, dtype="float32")
    other = Gpu((9, 0), 114, 227 << 10, 1 << 20)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = tuned.choose(LOADED, problem, other, "nvidia-h100-pcie")
    assert (found.provider, found.parameters["block_size"], found.how) == ("cuda", 2048, "sibling")
    assert found.reason == (
        "there is no usable table of tuned configurations for nvidia-h100-pcie. "
        "The times of nvidia-h200 are used."
    )
    _, made = tuned.chosen(LOADED, problem, other, "nvidia-h100-pcie")
    assert made is not None and not made.within_l2, "the L2 cache is that of the GPU in use"
    ampere = Gpu((8, 0), 108, 163 << 10, 40 << 20)
    with pytest.warns(RuntimeWarning, match=r"holds no nvidia-a100\.json; torch is called"):
        assert tuned.choose(LOADED, problem, ampere, "nvidia-a100").how == "torch"
    forget_tables()
    close = {"torch": (10.0,), "cuda 2048x8w": (9.0,)}  # 11 %, which is clear enough only on the same GPU
    monkeypatch.setenv(table_files.VARIABLE, str(written(some(close, (512,)), "close").parent))
    assert tuned.choose(LOADED, problem, other, "nvidia-h100-pcie").how == "torch"


def test_where_a_gpus_own_table_leaves_torch_that_of_another_gpu_is_asked(
    beside: Beside, written: Written
) -> None:
    own = {"torch": (10.0,) * 2, "cuda 2048x8w": (9.9, 20.0)}
    path = written(some(own, (256, 512)), "own")
    other = written(some(PLANTED, COLUMNS), "other").read_text()
    beside(path, other)
    assert (chosen(512).provider, chosen(512).how) == ("torch", "exact")
    assert (chosen(1000).provider, chosen(1000).how) == ("cuda", "sibling")
    assert chosen(1000).reason.startswith("softmax was not tuned at this problem.")
    path.write_text("[]")
    forget_tables()
    with pytest.warns(RuntimeWarning, match="torch is called"):
        assert chosen(1000).how == "torch", "a table that can't be used is to be noticed"


def test_where_the_fastest_provider_was_edited_another_gpus_table_comes_before_a_default(
    beside: Beside, written: Written
) -> None:
    """As after an edit, when only one of the GPUs has been measured again."""
    path = written(some(PLANTED, COLUMNS), "own")
    present = path.read_text()
    of_cuda = json.loads(present)["kernels"][KERNEL]["sources"]["cuda"]
    path.write_text(present.replace(of_cuda, "of another time"))
    forget_tables()
    with pytest.warns(RuntimeWarning, match="softmax/cuda was edited since it was tuned on nvidia-h200"):
        assert (chosen(512).provider, chosen(512).how) == ("triton_online", "default"), "no other table"

    def with_another(text: str, columns: int = 512) -> Choice:
        beside(path, text)
        return chosen(columns)

    found = with_another(present)
    assert (found.provider, found.parameters["block_size"], found.how) == ("cuda", 2048, "sibling")
    assert found.reason == (
        "softmax/cuda was edited since it was tuned on nvidia-h200; sweep and tune again. "
        "The times of nvidia-h100 are used."
    )
    found = with_another(present, 700)
    assert (found.provider, found.how) == ("cuda", "sibling"), (
        "which the rule would choose between problems, too"
    )
    assert with_another(path.read_text()).how == "default", "it is as old there"
    path.write_text(present)
    assert with_another(present).how == "exact", "this GPU was measured again, too"


def test_a_provider_that_was_never_measured_here_is_chosen_by_another_gpus_table(
    beside: Beside, written: Written
) -> None:
    """If it is clearly faster there than what this GPU's table chooses; and not if it was measured here, and
    was too slow to be listed."""
    own = {name: us for name, us in PLANTED.items() if not name.startswith("cuda")}
    path = written(some(own, COLUMNS), "own")

    def with_another(times: dict[str, tuple[float, ...]]) -> Choice:
        beside(path, written(some(times, COLUMNS), "other").read_text())
        return chosen(512)

    found = with_another(PLANTED)
    assert (found.provider, found.parameters["block_size"], found.how) == ("cuda", 2048, "sibling")
    assert found.reason == "softmax/cuda was not measured on nvidia-h200. The times of nvidia-h100 are used."
    close = PLANTED | {"triton_online 1024x4w": (10.8,) * 6}
    assert (with_another(close).provider, with_another(close).how) == ("triton_online", "exact"), (
        "8 % are not clear enough"
    )
    slow = own | {"cuda 2048x8w": (40.0,) * 6}
    text = written(some(slow, COLUMNS), "slow").read_text()
    assert json.loads(text)["kernels"][KERNEL]["measured"] == ["cuda", "torch", "triton_online"]
    path.write_text(text)
    assert (with_another(PLANTED).provider, with_another(PLANTED).how) == ("triton_online", "exact")


def test_another_gpus_nearer_problem_comes_before_a_far_one_of_this_gpu(
    beside: Beside, written: Written
) -> None:
    """As where few problems were measured on this GPU, and many on the other."""
    own = {"torch": (20.0,) * 3, "cuda 1024x4w": (10.0,) * 3, "triton_online 1024x8w": (12.0,) * 3}
    own |= {"cuda 2048x8w": (13.0,) * 3}
    path = written(some(own, (256, 300, 350)), "own")

    def with_another(
        times: dict[str, tuple[float, ...]], columns: tuple[int, ...] = COLUMNS, dtype: str = "float32"
    ) -> Choice:
        beside(path, written(some(times, columns, dtype), "other").read_text())
        return chosen(1100)

    clear = PLANTED | {"cuda 1024x4w": (12.0,) * 6}
    found = with_another(clear)
    assert (found.provider, found.parameters["block_size"], found.how) == ("cuda", 2048, "sibling")
    assert found.reason == (
        "The table of nvidia-h100 has a nearer problem than that of nvidia-h200. "
        "The times of nvidia-h100 are used."
    )
    here = ("cuda", 1024, "default")
    for times, columns, why in (
        (PLANTED, COLUMNS, "10 % are not clear enough"),
        ({name: us[:2] for name, us in clear.items()}, (64, 128), "its problems are farther away"),
        (clear | {"torch": (10.5,) * 6}, COLUMNS, "not clearly faster than torch there"),
        ({"torch": (20.0,) * 6, "triton_online 1024x8w": (8.0,) * 6}, COLUMNS, "it has no time of cuda"),
        ({"torch": (20.0,) * 6, "cuda 2048x8w": (5.0,) * 6}, COLUMNS, "nor of the configuration"),
    ):
        kept = with_another(times, columns)
        assert (kept.provider, kept.parameters["block_size"], kept.how) == here, why
    with_another(clear)
    assert chosen(300).how == "exact"
    both = {"torch": (20.0,) * 6, "triton_online 1024x8w": (5.0,) * 6, "cuda 1024x4w": (6.0,) * 6}
    assert with_another(both).provider == "triton_online"
    text = path.with_name("nvidia-h100.json").read_text()
    beside(path, text.replace(json.loads(text)["kernels"][KERNEL]["sources"]["cuda"], "of another time"))
    kept = chosen(1100)
    assert (kept.provider, kept.parameters["block_size"], kept.how) == here, "its times are of another source"
    wrong = row("cuda", 350, status="incorrect", block_size=2048, num_warps=8)
    path.write_text(written([*some(own, (256, 300, 350)), wrong], "wrong").read_text())
    kept = with_another(clear)
    assert (kept.provider, kept.parameters["block_size"], kept.how) == here, "it was wrong on this GPU"
    path.write_text(written(some(own, (256, 300, 350), "float16"), "in 16 bits").read_text())
    with_another(clear, dtype="bfloat16")
    assert chosen(1100, "float16").how == "default", "the nearer problem is in another dtype"


def test_the_rule_where_it_is_trusted_comes_before_another_gpus_nearer_problem(
    beside: Beside, written: Written
) -> None:
    columns = (256, 300, 400, 512, 600, 700)
    own = {"torch": (20.0,) * 6, "cuda 1024x4w": (10.0,) * 6, "cuda 2048x8w": (14.0,) * 6}
    path = written(some(own, columns), "own")
    theirs = {"torch": (20.0,), "cuda 1024x4w": (14.0,), "cuda 2048x8w": (10.0,)}
    other = written(some(theirs, (401,)), "other").read_text()
    beside(path, other)
    assert (chosen(402).parameters["block_size"], chosen(402).how) == (1024, "generalised")


def test_the_nearer_of_the_other_dtype_here_and_of_another_gpu_is_chosen_by(
    beside: Beside, written: Written
) -> None:
    path = written(some(PLANTED, COLUMNS, "bfloat16"), "own")
    far = {name: us[:2] for name, us in PLANTED.items() if name != "cuda 2048x8w"}
    other = written(some(far, (1000, 1100), "float16"), "other").read_text()
    beside(path, other)
    near_here, near_there = chosen(520, "float16"), chosen(1080, "float16")
    assert (near_here.parameters["block_size"], near_here.how) == (2048, "other_dtype")
    assert (near_there.parameters["block_size"], near_there.how) == (1024, "sibling")


def test_a_dtype_that_was_never_tuned_is_chosen_for_by_the_other_of_its_size(
    written: Written, monkeypatch: pytest.MonkeyPatch
) -> None:
    close = {"torch": (11.0,) * 6, "cuda 2048x8w": (10.0,) * 6}  # clear enough only in the same dtype
    path = written(
        [
            *some(PLANTED, COLUMNS, "bfloat16"),
            *some({"torch": (20.0,), "cuda 1024x4w": (11.0,)}, COLUMNS[:1]),
        ],
        "a",
    )
    found = chosen(512, "float16")
    assert (found.provider, found.parameters["block_size"], found.how) == ("cuda", 2048, "other_dtype")
    assert found.reason == (
        "softmax was not tuned at this problem. The times in bfloat16 of nvidia-h200 are used."
    )
    assert chosen(512, "bfloat16").how == "exact"
    monkeypatch.setenv(table_files.VARIABLE, str(path.parent))
    problem = LOADED.kernel.problem(rows=4096, columns=512, dtype="float16")
    by_another = tuned.choose(LOADED, problem, Gpu((9, 0), 114, 227 << 10, 1 << 20), "nvidia-h100-pcie")
    assert (by_another.provider, by_another.how) == ("cuda", "sibling")
    assert by_another.reason.endswith("The times in bfloat16 of nvidia-h200 are used.")
    monkeypatch.delenv(table_files.VARIABLE)
    written(some(close, COLUMNS, "bfloat16"), "b")
    assert (chosen(512, "float16").provider, chosen(512, "float16").how) == ("torch", "torch")
    written(
        [
            *some(PLANTED, COLUMNS, "bfloat16"),
            *of_workload("other", some({"torch": (5.0,), "cuda 1024x4w": (9.0,)}, (900,), "float16")),
        ],
        "c",
    )
    assert chosen(512, "float16").how == "torch", "a problem in float16 says that torch is faster"
