"""Dimensions that are not counts from 1 on: real numbers, and axes without elements."""

import shutil
from pathlib import Path

import pytest

from kernel_pipeline.contract import variables
from kernel_pipeline.errors import UserError
from pipeline.points import catalog, notation
from tests.planted import scaled
from tests.planted.tree import PLANTED, cpu_tree


@pytest.mark.slow
def test_an_eps_and_rows_without_elements_are_measured_by_the_values_that_are_asked_for(
    tmp_path: Path,
) -> None:
    tree = cpu_tree(tmp_path, "scaled")
    refused = {
        "rows=-1": "rows: must be at least 0, not -1.",
        "columns=0": "columns: must be at least 1, not 0.",
        "eps=small": "eps: must be a finite number, not 'small'.",
    }
    asked = ([], ["rows=3", "columns=64", "eps=[1e-5,0.5]"], *([option] for option in refused))
    preset, pinned, *others = tree.in_turn("sweep", *(["kernel=scaled", *options] for options in asked))
    assert (preset.returncode, pinned.returncode) == (0, 0)
    for done, message in zip(others, refused.values(), strict=True):
        assert done.returncode == 2 and done.stderr == f"error: {message}\n"
    found = {
        (row.point.problem["rows"], row.point.problem["eps"], row.point.provider): row.outcome.status
        for row in tree.rows("scaled")
    }
    shapes = [(0, 1e-6), (0, 0.25), (7, 1e-6), (7, 0.25), (3, 1e-5), (3, 0.5)]
    assert found == {
        (rows, eps, provider): "incorrect" if provider == "fixed_eps" and rows and eps > 1e-3 else "ok"
        for rows, eps in shapes
        for provider in ("torch", "fixed_eps")
    }
    written = {notation.words(row.point) for row in tree.rows("scaled")}
    assert {"float32 eps=0.25", "float32 eps=0.5"} <= written


def test_yaml_and_the_command_line_write_a_real_number_in_any_form() -> None:
    eps = variables(scaled.Rows)["eps"]
    assert [eps.check(value) for value in ("1e-5", 1, 0.25)] == [1e-5, 1.0, 0.25]
    for wrong in (float("nan"), "inf", "abc", True, None):
        with pytest.raises(ValueError, match="a finite number"):
            eps.check(wrong)


@pytest.mark.slow
def test_a_kernel_outside_without_a_yaml_is_measured_at_the_dimensions_of_the_command_line(
    tmp_path: Path,
) -> None:
    tree = cpu_tree(tmp_path)
    folder = tmp_path / "scaled"
    shutil.copytree(PLANTED / "scaled", folder)
    named = ("provider=torch", "rows=2", "columns=[8,9]")
    tree.run(f"kernel={folder}", *named)
    assert [row.point.problem["columns"] for row in tree.rows("scaled")] == [8, 9]
    refused, bare = tree.in_turn("sweep", [f"kernel={folder}", "rows=2"], [f"kernel={folder}"])
    assert refused.returncode == 2
    assert refused.stderr == (
        f"error: {folder}/kernel.yaml does not exist, so the command line must name each dimension: "
        "add columns=VALUE.\n"
    )
    assert bare.stderr.endswith("add rows=VALUE columns=VALUE.\n")


@pytest.mark.slow
def test_a_seed_and_an_axis_called_x_are_dimensions(tmp_path: Path) -> None:
    """The seed is an argument of entries under the name that the command line has for its own option."""
    tree = cpu_tree(tmp_path, "noise")
    done = tree.in_turn(
        "sweep", ["kernel=noise", "seed=5"], ["kernel=noise", "x=8", "noise_seed=3", "seed=5"]
    )
    assert [one.returncode for one in done] == [0, 0]
    found = {
        (row.point.problem["x"], row.point.problem["noise_seed"], row.point.provider): row.outcome.status
        for row in tree.rows("noise")
    }
    assert found == {
        (x, seed, provider): "ok" if provider == "torch" or seed == 0 else "incorrect"
        for x, seed in [(100, 0), (100, 1), (8, 3)]
        for provider in ("torch", "unseeded")
    }


@pytest.mark.parametrize("name", ["seed", "device", "output"])
def test_an_option_of_the_command_line_is_no_name_of_a_dimension(name: str, tmp_path: Path) -> None:
    folder = tmp_path / "noise"
    shutil.copytree(PLANTED / "noise", folder)
    file = folder / "__init__.py"
    file.write_text(file.read_text().replace("noise_seed", name))
    with pytest.raises(UserError) as raised:
        catalog.find(str(folder))
    assert str(raised.value) == (
        f"{file}: {name} is an option of the command line: rename the dimension or parameter, and write "
        f'arguments={{"{name}": "new_name"}} if entries take the dimension as {name}.'
    )
