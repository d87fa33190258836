"""A table of tuned configurations from a file that somebody else wrote, or that was damaged."""

import copy
import json
import math
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kernel_pipeline import loading
from kernel_pipeline.contract import Gpu
from kernel_pipeline.loading import Loaded
from kernel_pipeline.ops import chooser, source, table, table_files, tuned
from kernel_pipeline.ops.choice import WORDS, Choice

SLUG = "nvidia-h200"
H200 = Gpu((9, 0), 132, 227 * 1024, 50 * 2**20)
SOFTMAX, INT4 = loading.load("softmax"), loading.load("matmul_int4")
PROBLEMS = {
    "softmax": [
        SOFTMAX.kernel.problem(rows=rows, columns=columns, dtype=dtype)
        for rows, columns in ((4096, 1024), (4096, 1500), (65536, 2000))
        for dtype in ("bfloat16", "float32")
    ],
    # Times are predicted from steps.
    "matmul_int4": [INT4.kernel.problem(m=m, n=4096, k=4096) for m in (1, 3, 0)],
}
HOW = set(WORDS) - {"other_dtype", "sibling"}
DELETED = object()
VALUES = (
    *(DELETED, None, True, 0, -1, 3, 2**70, 10**400, 0.5, -1.5, math.nan, math.inf, -math.inf),
    *("", "torch", "no such", [], ["x"], [[]], [None], {}, {"x": 1}, {"dtype=bfloat16": {}}, {"": None}),
)


@pytest.fixture(scope="module", params=[SOFTMAX, INT4], ids=lambda loaded: loaded.name)
def loaded(request: pytest.FixtureRequest) -> Loaded:
    found: Loaded = request.param
    return found


@pytest.fixture(scope="module")
def whole(loaded: Loaded) -> dict[str, Any]:
    """A table of today's sources that trusts its rule."""
    content: dict[str, Any] = json.loads((table_files.PLACES[0] / f"{SLUG}.json").read_text())
    one = content["kernels"][loaded.name]
    content |= {"kernels": {loaded.name: one}, "rule": chooser.rule_digest(), "l2_bytes": 50 * 2**20}
    few = [each for each in one["problems"] if each["problem"].get("rows") == 4096]
    one["problems"] = (few + one["problems"])[:6]
    for problem in one["problems"]:
        problem["near"] = dict(list(problem["near"].items())[:4])
    named = {name for problem in one["problems"] for name in (problem["best"], *problem["near"])}
    named |= {name for region in one["regions"] for those in region["fallback"].values() for name in those}
    one["configurations"] = {name: each for name, each in one["configurations"].items() if name in named}
    one["sources"] = {
        name: source.digest(loaded, name)
        for name in {each["provider"] for each in one["configurations"].values()}
    }
    for region in one["regions"]:
        region |= {"distance": 3.0 if region["within_l2"] else None, "regret_p90": 9.0}
    return content


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Where each value of a JSON document lies."""
    yield path
    if isinstance(value, dict | list):
        for key, one in value.items() if isinstance(value, dict) else enumerate(value):
            yield from places(one, (*path, key))


def mutated(whole: dict[str, Any], path: tuple[Any, ...], value: Any) -> Any:
    made = copy.deepcopy(whole)
    holder: Any = made
    for key in path[:-1]:
        holder = holder[key]
    if value is DELETED:
        del holder[path[-1]]
    else:
        holder[path[-1]] = value
    return made


def chosen(text: str, path: Path, monkeypatch: pytest.MonkeyPatch, loaded: Loaded = SOFTMAX) -> list[Choice]:
    """What the user's calls are given; no mutation may raise there."""
    path.write_text(text)
    monkeypatch.setenv(table_files.VARIABLE, str(path))
    table_files.read.cache_clear()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return [tuned.choose(loaded, problem, H200, SLUG) for problem in PROBLEMS[loaded.name]]


def test_the_whole_table_chooses_by_problem_and_by_rule(
    whole: dict[str, Any], loaded: Loaded, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = chosen(json.dumps(whole), tmp_path / "table.json", monkeypatch, loaded)
    assert {"exact", "generalised"} <= {one.how for one in found}


def test_the_committed_tables_are_of_todays_rule() -> None:
    """Else the rule is used at no problem. A changed rule needs new regrets (``pipeline.tune``); a rule that
    makes the same choices in other words needs its digest in the tables."""
    for path in table_files.PLACES[0].glob("*.json"):
        made = table.read(path, path.stem)
        assert made.rule == chooser.rule_digest()
        assert table.text(made) == path.read_text()
        assert made.properties is not None and made.properties.multiprocessors > 0


@pytest.mark.slow
def test_no_mutation_of_a_table_raises_in_a_users_call(
    whole: dict[str, Any], loaded: Loaded, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    variables = {one.name: one.variables() for one in loaded.kernel.providers}
    count, raised = 0, []
    alike = range(2, len(whole["kernels"][loaded.name]["problems"]))
    others = [("kernels", loaded.name, "problems", index) for index in alike]
    for path in [one for one in places(whole) if one and one[:4] not in others]:
        for value in VALUES:
            text = json.dumps(mutated(whole, path, value))
            count += 1
            try:
                found = chosen(text, tmp_path / "table.json", monkeypatch, loaded)
            except Exception as error:
                raised.append(f"{path} = {value!r:.40}: {error!r}")
                continue
            for choice in found:
                assert choice.how in HOW
                for name, one in choice.parameters.items():
                    variables[choice.provider][name].check(one)
    assert count > 3000
    assert not raised, f"{len(raised)} of {count}:\n" + "\n".join(raised[:40])


@pytest.mark.parametrize(
    "text",
    ["[" * 100_000, '{"format":' * 100_000, "", "\0", '{"format": NaN}'],
    ids=["lists", "objects", "empty", "zero", "nan"],
)
def test_what_is_no_table_is_torch(text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = chosen(text, tmp_path / "table.json", monkeypatch)
    assert {one.how for one in found} == {"torch"}
