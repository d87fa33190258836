"""Kernels of every kind that the contract allows, measured by the real command in a copy of the tree.

The kinds are: words and flags among dimensions and parameters, several outputs, packed inputs, one
dimension, in place, and Triton in files of any name. For each kind, an error in the kernel must be found.
"""

from pathlib import Path

import pytest

from kernel_pipeline.records.base import Values
from kernel_pipeline.records.measurement import Measurement
from tests.planted.tree import Tree, cpu_tree

HOT = "timing.cache=hot"


def swept(folder: Path, kernel: str, *options: str) -> tuple[Tree, list[Measurement], str]:
    """Sweep a kernel in a new tree. Return the tree, the rows and the printed text."""
    tree = cpu_tree(folder, kernel)
    said = tree.run(f"kernel={kernel}", HOT, *options)
    return tree, tree.rows(kernel), said


of_several = pytest.mark.xdist_group("planted")
"""Puts tests into one group, because one sweep measures their kernels."""

Several = tuple[Tree, dict[str, list[Measurement]], str]


@pytest.fixture(scope="module")
def several(tmp_path_factory: pytest.TempPathFactory) -> Several:
    """Sweep several kernels at once. Return the tree, each kernel's rows and the printed text."""
    names = ("extremes", "accumulate", "heads", "doubled", "backwards")
    tree = cpu_tree(tmp_path_factory.mktemp("planted"), *names)
    said = tree.run(f"kernel={','.join(names)}", HOT)
    return tree, {name: tree.rows(name) for name in names}, said


def statuses(rows: list[Measurement]) -> dict[str, set[str]]:
    """Return the statuses of each provider's points."""
    found: dict[str, set[str]] = {}
    for row in rows:
        found.setdefault(row.point.provider, set()).add(row.outcome.status)
    return found


def errors(rows: list[Measurement]) -> dict[str, str]:
    """Return the error of each provider's last failed point."""
    return {row.point.provider: row.outcome.error for row in rows if row.outcome.error is not None}


@pytest.mark.slow
def test_words_and_flags_are_dimensions_and_parameters_like_any(tmp_path: Path) -> None:
    asked = ("causal=true", "mode=[sum,mean]", "strategy=product", "reverse=[true,false]", "chunk=16")
    tree, rows, said = swept(tmp_path, "prefix", *asked)
    assert len(rows) == 2 * (1 + 2 + 1)
    assert statuses(rows) == {"torch": {"ok"}, "ways": {"ok"}, "never_causal": {"incorrect"}}
    assert {row.point.problem["causal"] for row in rows} == {True}
    ways = [row.point.parameters for row in rows if row.point.provider == "ways"]
    assert set(ways) == {
        Values({"strategy": "product", "reverse": reverse, "chunk": 16}) for reverse in (True, False)
    }
    assert "float32 causal" in said and "float32 mean causal" in said, "words that are not the default"
    assert "ways 16c,strategy=product,reverse=" in said
    assert '"causal":true' in tree.ledger("prefix").read_text()

    again = tree.sweep("kernel=prefix", HOT, *(word.replace("true", "1") for word in asked))
    assert "Nothing to measure" in again.stdout, "a flag may be written as 1"


@pytest.mark.slow
@of_several
def test_every_output_has_its_own_shape_dtype_and_tolerance(several: Several) -> None:
    rows = several[1]["extremes"]
    right = ("torch", "as_list", "right_at_the_end")
    assert all(statuses(rows)[provider] == {"ok"} for provider in right)
    said = {
        "places_swapped": "first call: output 1: 16 of 16 elements are wrong",
        "places_too_wide": "first call: output 1: dtype is torch.int64, not torch.int32",
        "reach_alone": "first call: returned 1 outputs, not 2",
        "turned_about": "first call: output 0: shape is (8, 2), not (8,)",
        "places_unwritten": ": output 1: ",
        "last_place_unwritten": ": output 1: 1 of 16 elements are wrong, the first at (7, 1): ",
        "reach_unwritten": ": output 0: ",
        "places_once": "on other inputs: output 1: ",
    }
    found = errors(rows)
    assert set(found) == set(said)
    assert all(text in found[provider] for provider, text in said.items()), found
    assert {status for provider in said for status in statuses(rows)[provider]} == {"incorrect"}
    (torch,) = (row for row in rows if row.point.provider == "torch")
    assert torch.rate is not None
    assert torch.rate.bytes == 8 * 50 * 4 + 8 * 2 + 8 * 2 * 4


@pytest.mark.long
@pytest.mark.slow
def test_packed_inputs_with_a_group_size_and_an_output_of_integers(tmp_path: Path) -> None:
    tree, rows, said = swept(tmp_path, "packed", "dtype=bfloat16", "bytes_a_step=[16,32]")
    assert len(rows) == 2 * 2 * (7 + 2)
    found = statuses(rows)
    assert found["whole"] == found["steps"] == {"ok"}
    # This provider gets its declared form of the inputs, while others at the same problem get the kernel's
    # own form.
    assert found["bytewise"] == {"ok"}
    assert found["bytewise_unasked"] <= {"incorrect", "runtime_error"}
    for provider, output in {"nibbles_swapped": 0, "sum_unwritten": 1, "sum_off_by_one": 1}.items():
        assert found[provider] == {"incorrect"}
        # Unwritten memory may hold the right values of an earlier call, so the first call may pass.
        assert f": output {output}: " in errors(rows)[provider], provider
    groups = {
        (row.point.problem["columns"], row.point.problem["group"])
        for row in rows
        if row.point.provider == "scale_of_the_next_group" and row.outcome.status == "ok"
    }
    assert groups == {(64, 64)}, "where there is one group, it is the next, too"
    assert "columns=64 group=64" in said

    # A row of 48 bytes is not a whole number of 32-byte steps.
    odd = tree.sweep("kernel=packed", HOT, "size=96", "group=32", "provider=steps", "bytes_a_step=[16,32]")
    assert odd.returncode == 0
    assert "steps: 1 configuration left out: 48 bytes per row are not a multiple of 32" in odd.stdout
    assert "1 of 1 are in" in odd.stdout


@pytest.mark.slow
@of_several
def test_a_problem_of_one_number(several: Several) -> None:
    tree, rows = several[0], several[1]["backwards"]
    assert statuses(rows) == {"torch": {"ok"}, "rolled": {"incorrect"}}
    assert {row.point.problem for row in rows} == {Values({"elements": 5}), Values({"elements": 70})}
    assert "Nothing to measure" in tree.sweep("kernel=backwards", HOT, "elements=[70,5]").stdout


@pytest.mark.slow
@of_several
def test_in_place_what_is_written_over_is_the_output(several: Several) -> None:
    rows = several[1]["accumulate"]
    right = ("returns_it", "returns_nothing", "right_at_the_end")
    assert {provider for provider, found in statuses(rows).items() if found == {"ok"}} == set(right)
    assert {provider for provider, found in statuses(rows).items() if found == {"incorrect"}} == {
        "writes_nothing",
        "writes_half",
        "returns_another",
        "writes_the_other_too",
        "writes_once",
    }
    of_float32 = errors([row for row in rows if row.point.problem["dtype"] == "float32"])
    assert of_float32["writes_half"].startswith("first call: 17 of 33 elements are wrong, the first at (16,)")
    assert of_float32["writes_the_other_too"] == "first call: changed its input"
    assert of_float32["writes_once"].startswith("on other inputs: ")


@pytest.mark.slow
@of_several
def test_a_dimension_that_is_the_same_as_another_unless_it_is_named(several: Several) -> None:
    tree, measured, said = several
    rows = measured["heads"]
    shapes = {(row.point.problem["heads"], row.point.problem["kv_heads"]) for row in rows}
    assert shapes == {(2, 2), (4, 4), (4, 1), (4, 2), (8, 1), (8, 2)}
    assert statuses(rows)["torch"] == {"ok"}
    alone = {
        row.point.problem["kv_heads"]: row.outcome.status for row in rows if "alone" in row.point.provider
    }
    assert alone == {1: "ok", 2: "incorrect", 4: "incorrect"}
    assert {row.workload for row in rows} == {"heads", "grouped"}
    assert "heads=4 kv_heads=1" in said
    named = tree.sweep("kernel=heads", HOT, "size=2", "kv_heads=[1,2]", "provider=torch")
    assert "1 point measured" in named.stdout, "kv_heads=2 is what size=2 measured before"


@pytest.mark.slow
@of_several
def test_triton_in_files_of_any_name_with_a_helper_between_them(several: Several) -> None:
    _, measured, said = several
    rows = measured["doubled"]
    found = statuses(rows)
    assert found["blocks"] == found["held"] == {"verified"}, "under the interpreter"
    assert "incorrect" in found["without_tail"]
    assert "elements are wrong" in errors(rows)["without_tail"]
    # A configuration that does not fit or needs another device is no point. It is counted by its reason.
    assert "hopper" not in found
    assert sum(row.point.provider == "held" for row in rows) == 3
    assert "held: 3 configurations left out: for example one block holds all: 20 elements > 16" in said
    assert "hopper: 2 configurations left out: needs a GPU" in said
    assert f"{len(rows)} of {len(rows)} are in outputs/timings/doubled/" in said
