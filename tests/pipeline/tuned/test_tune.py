"""``python -m pipeline.tune`` writes the table of tuned configurations, and the table decides the choices."""

import json
import warnings
from pathlib import Path
from typing import Any

import pytest

from kernel_pipeline import loading
from kernel_pipeline.ops import chooser, source, table_files, tuned
from kernel_pipeline.ops.table import read
from kernel_pipeline.records.settings import TimingSettings
from pipeline import tune
from pipeline.command.options import TuneConfig
from pipeline.command.run import run_stage
from pipeline.keys.identity import Identity
from pipeline.points import catalog
from pipeline.store import results
from pipeline.verdicts import tuning
from tests import factory
from tests.commands import exit_code
from tests.factory import H200

from .tables import COLUMNS, ENVIRONMENT, GPU, KERNEL, LOADED, PLANTED, Written, chosen, row, some


def test_the_table_of_a_gpu_that_is_elsewhere_is_made_of_its_results(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    factory.write_results(tmp_path, some(PLANTED, COLUMNS))
    path = results.environment_path(tmp_path, H200)

    def tuned_for(gpu: str) -> str:
        code = exit_code(run_stage, "tune", TuneConfig, tune.run, f"output={tmp_path}", f"gpu={gpu}")
        said = capsys.readouterr()
        return said.err if code else ""

    for lacking in ("l2_bytes", "multiprocessors", "shared_memory"):
        path.write_text(ENVIRONMENT.replace(**{lacking: None}).to_json().decode())
        assert f"{path} lacks the size of the L2 cache, the number of multi" in tuned_for(H200)
    assert "unknown gpu 'nvidia-h20'. Did you mean 'nvidia-h200'?" in tuned_for("nvidia-h20")
    path.write_text(ENVIRONMENT.to_json().decode())
    assert tuned_for(H200) == ""
    table = json.loads(results.tuned_path(tmp_path, H200).read_text())
    assert (table["gpu"], table["l2_bytes"]) == (H200, GPU.l2_cache)
    assert len(table["kernels"][KERNEL]["problems"]) == len(COLUMNS)


@pytest.mark.parametrize("option", [f"gpu={H200}", "device=cpu", "replay=true"])
def test_a_folder_that_is_not_there_is_said_and_not_made(
    option: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    nowhere = tmp_path / "reslts"
    assert exit_code(run_stage, "tune", TuneConfig, tune.run, f"output={nowhere}", option) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"error: output={nowhere} is not a folder with results: measure a kernel, or")
    assert not nowhere.exists()


def test_a_baseline_in_another_form_is_no_candidate_and_has_a_time(
    written: Written, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tuning, "takes_inputs", lambda provider: provider.name != "torch")
    path = written(some({"torch": (5.0,), "cuda 1024x4w": (10.0,)}, (256,)))
    of_kernel = json.loads(path.read_text())["kernels"][KERNEL]
    (problem,) = of_kernel["problems"]
    assert (problem["best"], problem["runner_up"], problem["baseline_us"]) == ("cuda 1024x4w", None, 5.0)
    assert "torch" not in {*of_kernel["measured"], *of_kernel["configurations"]}
    torch, cuda = some({"torch": (5.0,), "cuda 1024x4w": (10.0,)}, (256,))
    for name, held, us in (
        ("beside", [factory.final(cuda, 9.0), factory.final(torch, 4.0)], 4.0),
        ("alone", [factory.final(cuda, 9.0)], None),
    ):
        factory.write_finals(tmp_path / name, held)
        (problem,) = json.loads(written([torch, cuda], name).read_text())["kernels"][KERNEL]["problems"]
        assert (problem["source"], problem["us"], problem["baseline_us"]) == ("finals", 9.0, us)
    doubtful = [row("torch", 256, 5.0, valid=False), cuda]
    (problem,) = json.loads(written(doubtful, "doubtful").read_text())["kernels"][KERNEL]["problems"]
    assert problem["baseline_us"] is None


def test_with_steps_a_table_keeps_slower_configurations(
    written: Written, monkeypatch: pytest.MonkeyPatch
) -> None:
    times = {"cuda 1024x4w": (10.0,), "cuda 2048x8w": (39.0,), "triton_online 1024x4w": (41.0,)}
    for most, labels in ((1.25, {"cuda 1024x4w"}), (4.0, {"cuda 1024x4w", "cuda 2048x8w"})):
        monkeypatch.setattr(tuning, "furthest", lambda kernel, most=most: most)
        (problem,) = json.loads(written(some(times, (256,))).read_text())["kernels"][KERNEL]["problems"]
        assert set(problem["near"]) == labels


def test_the_table_says_what_was_measured_at_each_problem(written: Written) -> None:
    path = written(some(PLANTED, COLUMNS))
    content = json.loads(path.read_text())
    assert (content["format"], content["gpu"], content["l2_bytes"]) == (6, H200, 50 << 20)
    assert read(path, H200).properties == GPU
    assert content["environment"]["torch"] == "2.11.0"
    of_kernel = content["kernels"][KERNEL]
    assert set(of_kernel["sources"]) == {"cuda", "torch", "triton_online"}
    first, *_, last = of_kernel["problems"]
    assert first["problem"] == {"rows": 4096, "columns": 256, "dtype": "float32"}
    assert (first["best"], first["us"], first["source"]) == ("cuda 2048x8w", 10.0, "sweep")
    assert first["interval_us"][0] < 10 < first["interval_us"][1]
    assert (first["runner_up"], first["runner_up_us"]) == ("triton_online 1024x4w", 12.0)
    assert first["baseline_us"] == 20.0
    assert first["near"] == {"cuda 2048x8w": 1.0, "cuda 1024x4w": 1.1, "triton_online 1024x4w": 1.2}
    assert first["tolerance"] == [[2e-5, 2e-38]] and first["max_abs_err"] == 1e-7
    assert (first["within_l2"], last["within_l2"], last["best"]) == (True, False, "cuda 1024x4w")
    # Each problem is one line, so that a changed problem is one changed line in a diff.
    lines = path.read_text().splitlines()
    assert sum('"problem": {' in line for line in lines) == len(COLUMNS)
    before = path.read_bytes()
    assert written(some(PLANTED, COLUMNS)).read_bytes() == before


def test_old_rows_and_those_not_to_be_trusted_are_not_in_it(
    written: Written, capsys: pytest.CaptureFixture[str]
) -> None:
    good = some({"torch": (20.0,), "cuda 1024x4w": (10.0,)}, (1024,))
    old = factory.measurement(KERNEL, "cuda", 1024, median_us=1.0, run="old", block_size=2048, num_warps=8)
    hot = row("cuda", 1024, 1.0, block_size=4096, num_warps=8, cache="hot")
    doubted = row("cuda", 1024, 1.0, block_size=512, num_warps=8, valid=False)
    path = written([*good, old, hot, doubted])
    (problem,) = json.loads(path.read_text())["kernels"][KERNEL]["problems"]
    assert problem["near"] == {"cuda 1024x4w": 1.0}
    assert "1 timed row is old: the source of softmax/cuda changed" in capsys.readouterr().out


def test_without_a_row_that_counts_no_table_is_written(
    written: Written, capsys: pytest.CaptureFixture[str]
) -> None:
    path = written([factory.measurement(KERNEL, "torch")])
    assert not path.exists()
    assert "no table was written" in capsys.readouterr().out


def test_finals_decide_where_they_were_held_of_these_rows(written: Written, tmp_path: Path) -> None:
    rows = some({"torch": (20.0,), "cuda 1024x4w": (10.0,), "triton_online 1024x4w": (9.9,)}, (1024,))
    torch, cuda, online = rows
    factory.write_finals(
        tmp_path, [factory.final(cuda, 9.8), factory.final(online, 10.1), factory.final(torch, 21.0)]
    )
    path = written(rows)
    (problem,) = json.loads(path.read_text())["kernels"][KERNEL]["problems"]
    assert (problem["best"], problem["us"], problem["source"]) == ("cuda 1024x4w", 9.8, "finals")
    assert (problem["runner_up"], problem["runner_up_us"]) == ("triton_online 1024x4w", 10.1)
    assert problem["baseline_us"] == 21.0


def test_finals_without_the_provider_that_is_the_fastest_now_do_not_decide(
    written: Written, tmp_path: Path
) -> None:
    """Its source was edited since, and its finals have another key."""
    rows = some({"torch": (20.0,), "cuda 1024x4w": (10.0,)}, (1024,))
    factory.write_finals(tmp_path, [factory.final(rows[0], 19.0)])
    (problem,) = json.loads(written(rows).read_text())["kernels"][KERNEL]["problems"]
    assert (problem["best"], problem["us"], problem["source"]) == ("cuda 1024x4w", 10.0, "sweep")


@pytest.mark.parametrize(("bound", "best"), [(8.0, "cuda 2048x8w"), (11.0, "cuda 1024x4w")])
def test_times_of_a_throttled_gpu_count_where_the_fastest_of_them_is_below_all_others(
    written: Written, bound: float, best: str
) -> None:
    rows = some({"torch": (20.0,), "cuda 1024x4w": (10.0,)}, (1024,))
    held_back = row("cuda", 1024, bound, block_size=2048, num_warps=8, throttle="sw_power_cap")
    (problem,) = json.loads(written([*rows, held_back]).read_text())["kernels"][KERNEL]["problems"]
    assert (problem["best"], problem["us"]) == (best, min(bound, 10.0))
    assert ("cuda 2048x8w" in problem["near"]) == (bound < 10)


def test_the_regret_is_what_one_finds_by_hand(written: Written) -> None:
    """Among the first five problems, within L2, the others always choose 2048x8w for the one left out.
    Beyond L2 the other two choose 1024x4w."""
    columns = (256, 300, 512, 600, 1024, 2048, 8192, 16384)
    times = {
        "torch": (20.0,) * 8,
        "cuda 1024x4w": (11.0, 11.0, 11.0, 11.0, 10.0, 10.0, 10.0, 10.0),
        "cuda 2048x8w": (10.0, 10.0, 10.0, 10.0, 10.4, 12.0, 12.0, 12.0),
    }
    path = written(some(times, columns))
    within, beyond = json.loads(path.read_text())["kernels"][KERNEL]["regions"]
    assert (within["within_l2"], within["problems"], beyond["problems"]) == (True, 5, 3)
    # The choice is the best at the first four problems and 4 % slower at 1024 columns, so the regrets are 0,
    # 0, 0, 0, 0.04.
    assert (within["regret_median"], within["regret_p90"]) == (0.0, 0.024)
    assert (within["generalised"], within["generalised_p90"]) == (5, 0.024)
    assert (beyond["regret_p90"], beyond["distance"]) == (0.0, None), "three problems are too few"


def test_nothing_is_chosen_that_was_not_verified(written: Written) -> None:
    rows = some(PLANTED, COLUMNS)
    # The fastest configuration was wrong at one problem, so it is chosen at none.
    rows = [
        one.replace(outcome=factory.measurement(status="incorrect").outcome, rate=None)
        if (one.point.parameters.get("block_size"), one.point.problem["columns"]) == (2048, 512)
        else one
        for one in rows
    ]
    written(rows)
    for columns in (*COLUMNS, 300, 4096):
        found = chosen(columns)
        assert found.parameters.get("block_size") != 2048
    # Nothing was measured in this other dtype.
    assert (chosen(512, "bfloat16").provider, chosen(512, "bfloat16").how) == ("torch", "torch")


def test_a_provider_that_was_edited_is_not_called_without_a_word(
    written: Written, monkeypatch: pytest.MonkeyPatch
) -> None:
    written(some(PLANTED, COLUMNS))
    of_today = source.digest
    monkeypatch.setattr(
        source, "digest", lambda loaded, name: "edited" if name == "cuda" else of_today(loaded, name)
    )
    with pytest.warns(RuntimeWarning, match="softmax/cuda was edited since it was tuned on nvidia-h200"):
        found = chosen(512)
    assert (found.provider, found.how) != ("cuda", "exact") and "was edited" in found.reason
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # the warning comes only once
        assert chosen(300).provider != "cuda" and chosen(1024).provider != "cuda"


@pytest.mark.parametrize(
    ("spoil", "sentence"),
    [
        (lambda text: text[: len(text) // 2], "is not JSON"),
        (lambda text: "[]", "is not a table of tuned configurations"),
        (
            lambda text: text.replace('"format": 6', '"format": 7'),
            "has format 7, and this version reads 6: update it, or tune again",
        ),
        (
            lambda text: text.replace('"format": 6', '"format": 5'),
            "has format 5, and this version reads 6: tune again",
        ),
        (
            lambda text: text.replace(f'"gpu": "{H200}"', '"gpu": "nvidia-b200"'),
            "was tuned on nvidia-b200, not on",
        ),
        (
            lambda text: text.replace('"best": "cuda 2048x8w"', '"best": "cuda 9x9w"'),
            "is incomplete or wrong",
        ),
        (lambda text: text.replace('"near": {', '"far": {'), "is incomplete or wrong"),
        (lambda text: text.replace('"compute_capability": "9.0"', '"compute_capability": "sm_90"'), "wrong"),
    ],
)
def test_a_table_that_cannot_be_used_is_one_sentence_once_and_torch(
    written: Written, spoil: Any, sentence: str
) -> None:
    path = written(some(PLANTED, COLUMNS))
    path.write_text(spoil(path.read_text()))
    with pytest.warns(RuntimeWarning, match=sentence) as said:
        found = [chosen(512), chosen(300)]
    assert len(said) == 1
    assert {(one.provider, one.how) for one in found} == {("torch", "torch")}


def test_a_provider_that_is_not_installed_is_one_sentence_and_another_is_called(written: Written) -> None:
    path = written(some(PLANTED, COLUMNS))
    content = path.read_text().replace('"provider": "cuda"', '"provider": "quack"')
    path.write_text(content)
    with pytest.warns(RuntimeWarning, match="needs quack-kernels, which is not installed"):
        found = chosen(512)
    assert found.provider in ("torch", "triton_online") and found.how in ("default", "torch")


def test_without_a_table_and_on_a_cpu_torch_is_called(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    problem = LOADED.kernel.problem(columns=512)
    on_cpu = tuned.choose(LOADED, problem, None, None)
    assert (on_cpu.provider, on_cpu.how) == ("torch", "torch") and on_cpu.reason
    monkeypatch.setattr(table_files, "PLACES", (tmp_path,))
    nowhere = tuned.choose(LOADED, problem, GPU, "nvidia-b200")
    assert (nowhere.provider, nowhere.how) == ("torch", "torch") and "nvidia-b200" in nowhere.reason
    monkeypatch.setenv(table_files.VARIABLE, str(tmp_path / "none.json"))
    with pytest.warns(RuntimeWarning, match="does not exist"):
        assert tuned.choose(LOADED, problem, GPU, "nvidia-b200").how == "torch"
    monkeypatch.setenv(table_files.VARIABLE, str(tmp_path))
    with pytest.warns(RuntimeWarning, match=r"holds no nvidia-b200\.json; torch is called"):
        assert tuned.choose(LOADED, problem, GPU, "nvidia-b200").how == "torch"


def test_every_kernel_has_a_choice_without_a_table() -> None:
    """The choice is the baseline, with a value for each of its parameters."""
    for name in loading.names():
        loaded = catalog.find(name).loaded
        baseline = loaded.kernel.provider(loaded.kernel.baseline)
        found = tuned.choose(loaded, None, None, None)
        assert found.provider == baseline.name and found.parameters.keys() == baseline.variables().keys()


def test_one_kernel_is_tuned_and_the_others_stay_in_the_table(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = results.tuned_path(tmp_path, H200)

    def tuned_for(*words: str) -> str:
        words = (f"output={tmp_path}", f"gpu={H200}", *words)
        code = exit_code(run_stage, "tune", TuneConfig, tune.run, *words)
        return capsys.readouterr().err if code else ""

    gelu = [factory.measurement("gelu", "torch"), factory.measurement("gelu", "triton")]
    identity = Identity(loading.load("gelu"), factory.environment(H200), TimingSettings(), 0)
    factory.write_results(
        tmp_path, [*some(PLANTED, COLUMNS), *(factory.fresh(one, identity) for one in gelu)]
    )
    results.environment_path(tmp_path, H200).write_text(ENVIRONMENT.to_json().decode())
    assert tuned_for("kernel=gelu") == ""
    assert set(read(path, H200).kernels) == {"gelu"}
    assert tuned_for("kernel=softmax") == ""
    both = path.read_text()
    assert set(read(path, H200).kernels) == {"gelu", "softmax"}
    assert tuned_for() == "" and path.read_text() == both
    assert "unknown kernel 'sofmax'. Did you mean 'softmax'?" in tuned_for("kernel=sofmax")
    path.write_text(both.replace(f'"rule": "{chooser.rule_digest()}"', '"rule": "0"'))
    assert "is of another rule: leave kernel= out" in tuned_for("kernel=gelu")
    path.write_text("[]")
    assert "is not a table of tuned configurations: leave kernel= out" in tuned_for("kernel=gelu")
