"""``ops.explain`` says what a call would get by a table, without calling it."""

from pathlib import Path
from typing import Any

import pytest
import torch

from kernel_pipeline import ops
from kernel_pipeline.loading import Loaded
from kernel_pipeline.ops import native, table_files
from tests.factory import H100, H200

from .tables import COLUMNS, PLANTED, Written, forget_tables, some

FORMULA = (128, 256, 512, 1024, 1536)
"""Widths at which a provider's times are 3 us and a part in proportion to the bytes, or multiples of that,
which are predicted nearly as well."""


@pytest.fixture(autouse=True)
def nothing_is_called(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fail if a provider is built, loaded or imported."""

    def fail(*args: Any) -> None:
        raise AssertionError(args)

    for name in ("library", "load"):
        monkeypatch.setattr(native, name, fail)
    monkeypatch.setattr(Loaded, "entry", fail)


def lines(columns: int, gpu: str = H200) -> dict[str, str]:
    """Return the lines of an explanation by their names; further lines have names of spaces."""
    text = str(ops.explain(ops.softmax, torch.empty(4096, columns, device="meta"), gpu=gpu))
    head, *rest = text.splitlines()
    assert head == f"softmax rows=4096 columns={columns} dtype=float32 on {gpu}"
    found: dict[str, str] = {}
    for line in rest:
        found[line[2:13].strip() or " " * len(found)] = line[13:]
    return found


def test_a_tuned_problem_rests_on_its_row(written: Written) -> None:
    path = written(some(PLANTED, COLUMNS))
    found = lines(512)
    called = "block_size=2048 num_warps=8"
    assert found.pop("called").startswith(f"cuda {called}")
    measured = found.pop("measured")
    assert measured.startswith("10 us (") and ", sweep at commit " in measured
    assert found == {
        "chosen by": "the table of tuned problems (exact)",
        "baseline": "torch, 20 us, sweep",
        "runner-up": "triton_online block_size=1024 num_warps=4, 12 us, sweep",
        "table": str(path),
    }


def test_between_tuned_problems_times_are_predicted_from_the_neighbours(written: Written) -> None:
    path = written(some(of_formula(1, 1.05), FORMULA))
    found = lines(768)
    assert found["chosen by"].endswith("(generalised)")
    assert found["because"] == "softmax was not tuned at this problem."
    assert (found["predicted"], found["baseline"]) == ("about 15 us", "torch, about 30 us")
    assert found["runner-up"] == "triton_online block_size=1024 num_warps=4, about 15.7 us"
    assert (
        found["rests on"] == "rows=4096 columns=1024 dtype=float32: 0.42 doublings away, 1 x the best there"
    )
    further = [text for name, text in found.items() if not name.strip()]
    assert further[0].startswith("rows=4096 columns=512 ") and len(further) == len(FORMULA) - 1
    assert found["table"] == str(path)


def of_formula(cuda: float, online: float) -> dict[str, tuple[float, ...]]:
    us = [3 + columns / 64 for columns in FORMULA]
    of = {"torch": 2.0, "cuda 2048x8w": cuda, "triton_online 1024x4w": online}
    return {label: tuple(factor * one for one in us) for label, factor in of.items()}


def test_where_torch_is_called_the_best_other_is_the_runner_up(written: Written) -> None:
    written(some(of_formula(1.96, 2.2), FORMULA))
    found = lines(768)
    assert (found["called"], found["predicted"]) == ("torch", "about 29.9 us")
    assert found["because"].endswith("cuda is not predicted clearly faster than torch.")
    assert found["runner-up"].startswith("cuda ") and found["runner-up"].endswith("about 29.3 us")
    assert "1.02 x the best there" in found["rests on"]


def test_the_table_of_another_gpu_is_named(written: Written, monkeypatch: pytest.MonkeyPatch) -> None:
    path = written(some(PLANTED, COLUMNS))
    own = path.read_text().replace(f'"gpu": "{H200}"', f'"gpu": "{H100}"').replace('"softmax"', '"sparsify"')
    (path.parent / f"{H100}.json").write_text(own)
    monkeypatch.setenv(table_files.VARIABLE, str(path.parent))
    forget_tables()
    found = lines(512, H100)
    assert found["chosen by"] == (
        "the rule between tuned problems of another GPU of the same architecture (sibling)"
    )
    assert found["because"] == f"softmax was not tuned on {H100}. The times of {H200} are used."
    assert found["table"] == str(path)


def test_an_unknown_gpu_is_answered_with_those_that_have_a_table(
    written: Written, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder: Path = written(some(PLANTED, COLUMNS)).parent
    monkeypatch.setenv(table_files.VARIABLE, str(folder))
    sentence = "there is no usable table of the GPU 'nvidia-b200'; the tables: nvidia-h200"
    with pytest.raises(ValueError, match=sentence):
        ops.explain(ops.softmax, torch.empty(2, 3), gpu="nvidia-b200")
