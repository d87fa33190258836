"""``python -m pipeline.finals`` measures the best of each provider side by side, with real ledgers and
processes."""

import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest

from pipeline.store import finals, turns
from pipeline.store.finals import Final
from tests.planted.tree import Tree, cpu_tree, trust_busy_cores

KERNELS = "kernel=[quick,doubled]"


def read(tree: Tree, kernel: str) -> list[Final]:
    (path,) = (tree.root / "outputs" / "finals" / kernel).glob("*.jsonl")
    return finals.read(path, pytest.fail)


def hold(tree: Tree, *options: str) -> tuple[int, str, str]:
    done = tree.sweep(*options, command="finals")
    return done.returncode, done.stdout, done.stderr


def runs(rows: Sequence[Final]) -> set[str]:
    return {row.origin.run for row in rows}


# The tests share one slow measurement.
pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("finals")]


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Tree:
    """Return a tree with two kernels that have been swept and have finals."""
    made = cpu_tree(tmp_path_factory.mktemp("finals"), "quick", "doubled")
    trust_busy_cores(made)
    assert made.sweep("kernel=quick,doubled").returncode == 0
    code, out, err = hold(made, KERNELS)
    assert (code, err) == (0, ""), out + err
    assert "They are in outputs/finals." in out
    assert "times the sweeps' times at the same points" in out
    return made


def test_each_provider_has_one_configuration_at_each_problem(tree: Tree) -> None:
    rows = read(tree, "quick")
    assert {(row.point.provider, *row.point.problem.values()) for row in rows} == {
        (provider, elements, "float32") for provider in ("mul", "blocks") for elements in (64, 128)
    }
    swept = {row.point: row for row in tree.rows("quick")}
    (path,) = (tree.root / "outputs/finals/quick/rounds").glob("*.jsonl")
    rounds = turns.read(path, pytest.fail)
    for row in rows:
        timing = swept[row.point].outcome.timing
        assert timing is not None
        assert (row.swept_us, row.key) == (timing.median_us, swept[row.point].key)
        assert (row.by, row.against, row.power) == ("torch", None, "burst"), "none of ours is there"
        assert sorted(turn.round for turn in rounds if turn.point == row.point) == [0, 1]
        assert len(row.rounds_us) == 2
        assert row.rate.is_of(row.median_us)
        # Doubling a float is exact, and the provider is deterministic.
        assert row.accuracy is not None
        assert (row.accuracy.ulp_median, row.accuracy.ulp_worst, row.accuracy.repeats) == (0.0, 0.0, True)
    assert len(runs(rows)) == 1
    # The dispatched configuration is one of the finalists. blocks is a torch provider, but not the baseline,
    # so callers never get it.
    dispatched = [(row.point.provider, row.point.problem["elements"]) for row in rows if row.dispatched]
    assert sorted(dispatched) == [("mul", 64), ("mul", 128)]


def test_an_edit_measures_its_matches_alone(tree: Tree, tmp_path: Path) -> None:
    tree = tree.copy(tmp_path)
    before = {kernel: read(tree, kernel) for kernel in ("quick", "doubled")}
    source = tree.root / "kernels/quick/torch.py"
    source.write_text(source.read_text().replace("return x * 2", "return 2 * x"))
    assert tree.sweep("kernel=quick").returncode == 0
    code, out, err = hold(tree, KERNELS)
    assert (code, err) == (0, ""), out
    assert read(tree, "doubled") == before["doubled"]
    after = read(tree, "quick")
    assert after[: len(before["quick"])] == before["quick"], "earlier finals are history"
    assert len(after) == 2 * len(before["quick"])
    newest = finals.newest(after)
    assert runs(newest).isdisjoint(runs(before["quick"])) and len(newest) == len(before["quick"])


def test_finals_that_can_not_be_written_are_not_said_to_be_there(tree: Tree, tmp_path: Path) -> None:
    made = tree.copy(tmp_path)
    (path,) = (made.root / "outputs/finals/doubled").glob("*.jsonl")
    shutil.rmtree(made.root / "outputs/finals")
    lock = path.with_name(f".{path.name}.lock")
    lock.mkdir(parents=True)  # no file can be appended to without its lock
    code, out, err = hold(made, KERNELS)
    assert code == 2 and err.startswith(f"error: can't write {path.relative_to(made.root)}: "), err
    assert err.count("\n") == 1
    assert f"{len(read(made, 'quick'))} of them are in outputs/finals." in out
    lock.rmdir()
    code, out, err = hold(made, KERNELS)
    assert (code, err) == (0, "") and "They are in outputs/finals." in out


def test_a_mistake_is_one_sentence(tree: Tree) -> None:
    mistakes = {
        ("kernel=quick", "output=nowhere"): "no ledger in nowhere has times from which "
        "finalists could be chosen: run python -m pipeline.sweep kernel=quick output=nowhere first.",
        (KERNELS, "output=nowhere"): "no ledger in nowhere has times from which "
        "finalists could be chosen: run python -m pipeline.sweep kernel=NAME output=nowhere first.",
        ("kernel=quick", "margin=2"): "margin: ",
        ("kernel=[quick,nothing]",): "unknown kernel 'nothing'",
    }
    for done, sentence in zip(tree.in_turn("finals", *mistakes), mistakes.values(), strict=True):
        assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1), done.stderr
        assert done.stderr.startswith(f"error: {sentence}")


def test_rows_that_are_old_are_no_finalists(tree: Tree, tmp_path: Path) -> None:
    made = tree.copy(tmp_path)
    reference = made.root / "kernels/quick/reference.py"
    reference.write_text(reference.read_text().replace("x.double() * 2", "2 * x.double()"))
    code, out, err = hold(made, "kernel=quick")
    assert (code, out) == (2, "") and "has times from which finalists could be chosen" in err


def test_times_at_other_problems_than_the_largest_are_not_called_none(tree: Tree, tmp_path: Path) -> None:
    """Preset cpu holds finals only at the largest problem."""
    made = tree.copy(tmp_path)
    for kernel in ("quick", "doubled"):
        config = made.root / f"conf/kernel/{kernel}.yaml"
        config.write_text(f"{config.read_text()}  cpu: {{workloads: [vectors]}}\n")
    ledger = made.ledger("quick")
    rows = ledger.read_text().splitlines(keepends=True)
    ledger.write_text("".join(row for row in rows if '"elements":128' not in row))
    options = ("preset=cpu", "timing.min_samples=5")  # as in the sweep
    both, alone = made.in_turn("finals", (KERNELS, *options), ("kernel=quick", *options))
    clause = (
        "quick: its ledger has fresh times at other problems, but none at 128 float32, "
        "where this preset measures finals"
    )
    assert both.returncode == 0 and f"\n{clause}.\n" in both.stdout, both.stdout + both.stderr
    command = "python -m pipeline.sweep kernel=quick preset=cpu output=outputs"
    assert (alone.returncode, alone.stdout) == (2, "")
    assert alone.stderr == f"error: {clause}; run {command} first.\n"


@pytest.mark.long
def test_a_missing_round_builds_its_library_and_where_all_are_known_none_is_built(tmp_path: Path) -> None:
    """A fresh clone with all rounds needs no build."""
    tree = cpu_tree(tmp_path)
    assert tree.sweep("kernel=vector_add", "provider=[torch,cpp]", "size=37").returncode == 0
    libraries = tree.root / "build/kernels/vector_add"
    (built,) = libraries.glob("*.so")
    for is_known in (False, True):
        shutil.rmtree(libraries)
        assert hold(tree, "kernel=vector_add")[0] == 0
        assert built.exists() == (not is_known)
