"""Problems from a file, in place of a preset's."""

from pathlib import Path

import pytest

from kernel_pipeline.contract import Gpu
from kernel_pipeline.errors import UserError
from pipeline.points import catalog
from pipeline.points.plan import Plan, Target, plan, with_baseline

GPU = Target("cuda", Gpu((9, 0), 132, 227 << 10, 50 << 20))
ENTRY = catalog.find("softmax")

UNTUNED = """{
  "gelu": {"problems": [{"rows": 8, "columns": 8, "dtype": "float32"}]},
  "softmax": {"problems": [
    {"rows": 37, "columns": 1000, "dtype": "bfloat16"},
    {"rows": 4096, "columns": 3000, "dtype": "float16"}
  ]}
}
"""


def planned(tmp_path: Path, text: str, name: str = "untuned.json", preset: str = "quick") -> Plan:
    path = tmp_path / name
    path.write_text(text)
    return plan(ENTRY, preset, GPU, written=path)


def problems(found: Plan) -> set[tuple[object, ...]]:
    return {tuple(point.problem.values()) for point in found.points}


def test_the_problems_of_the_kernel_are_planned_and_no_others(tmp_path: Path) -> None:
    found = planned(tmp_path, UNTUNED)
    assert problems(found) == {(37, 1000, "bfloat16"), (4096, 3000, "float16")}
    assert set(found.workloads.values()) == {"untuned"}
    # In the configurations of the preset.
    warps = {point.parameters["num_warps"] for point in found.points if point.provider == "triton_online"}
    assert warps == {4, 16, 32}


@pytest.mark.parametrize(
    "text",
    [
        "- {rows: 2, columns: 8}\n- {rows: 2, columns: 16}\n",
        "{problems: [{columns: 8}, {columns: 16}], rows: [2]}",
        "softmax: {size: [8, 16], rows: 2}",
        "columns: [8, 16]\nrows: 2\n",
    ],
)
def test_a_list_and_a_workload_say_the_same(tmp_path: Path, text: str) -> None:
    assert problems(planned(tmp_path, text, "mine.yaml")) == {(2, 8, "float32"), (2, 16, "float32")}


def test_pins_and_the_baseline_go_with_it(tmp_path: Path) -> None:
    path = tmp_path / "untuned.json"
    path.write_text(UNTUNED)
    pins = {"dtype": ("float32",), "block_size": (4096,)}
    wanted = plan(ENTRY, "quick", GPU, pins, ["cuda"], written=path)
    assert problems(wanted) == {(37, 1000, "float32"), (4096, 3000, "float32")}
    both = with_baseline(wanted, ENTRY, "quick", GPU, pins, written=path)
    assert {point.provider for point in both.points} == {"cuda", "torch"}
    assert problems(both) == problems(wanted)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ('{"gelu": {"problems": []}}', "has problems of gelu, but none of softmax."),
        ('{"softmax": {"problems": []}}', "has no problems of softmax: write a list of them under problems."),
        ("", "has no problems of softmax: write a list of them under problems."),
        ("12", "has no problems of softmax: write a list of them under problems."),
        ("- {rows: 2, cols: 8}", "unknown dimension of softmax 'cols'."),
        ("- {rows: 2, columns: eight}", "columns: must be a whole number"),
        ("- {rows: 2, columns: 9223372036854775808}", "columns: must be less than 2**63, not 92233"),
        ("- {columns: 8, dtype: [float32, float16]}", "dtype: must be a word, not [float32,float16]."),
        ("{columns: 8, dtype: [[float32, float16]]}", "dtype: must be a word, not [float32,float16]."),
        ("{columns: {eight: 8}}", "columns: must be a whole number, not {'eight': 8}."),
        ("- [2, 8]", "problems.0: "),
        ("- {rows: 2", "can't read workload="),
        ("- {rows: 2}", "columns is missing"),
    ],
)
def test_a_mistake_is_a_sentence(tmp_path: Path, text: str, sentence: str) -> None:
    with pytest.raises(UserError) as raised:
        planned(tmp_path, text)
    assert sentence in str(raised.value) and "\n" not in str(raised.value)


def test_a_file_that_is_not_there_is_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"workload=.*none.json can't be read \(No such file or directory\)"):
        plan(ENTRY, "quick", GPU, written=tmp_path / "none.json")
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UserError, match="is not a text file"):
        plan(ENTRY, "quick", GPU, written=tmp_path / "binary")


def test_a_workload_of_the_kernels_own_is_planned_in_the_configurations_of_its_groups() -> None:
    found = plan(ENTRY, "standard", GPU, written=Path("few_rows"))
    assert {point.problem["rows"] for point in found.points} == {1, 37, 1823}
    assert set(found.workloads.values()) == {"few_rows"}
    strategies = {point.parameters["strategy"] for point in found.points if point.provider == "cuda"}
    assert strategies == {"auto", "multi_pass", "split_multi_pass", "persistent"}, "of both of its groups"
    # A preset that does not measure the workload takes the configurations of its first group.
    quick = plan(ENTRY, "quick", GPU, written=Path("few_rows"))
    assert problems(quick) == problems(found)
    blocks = {point.parameters["block_size"] for point in quick.points if point.provider == "triton_online"}
    assert blocks == {4096}


def test_a_name_that_is_neither_a_file_nor_a_workload_says_which_there_are() -> None:
    with pytest.raises(UserError, match=r"name a file with .* or one of softmax's workloads: .*few_rows"):
        plan(ENTRY, "quick", GPU, written=Path("few_row"))
