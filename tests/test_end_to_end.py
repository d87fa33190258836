"""The pipeline as a user runs it: real processes, DVC, compilers and MLflow, in a repository of its own.

The tests change something each and look at what follows. Each leaves the repository reproduced, so that any
of them can be run alone.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from typing import Any

import pytest
import yaml

import kernels
from kernels.contract import Provider
from pipeline.config import GridConfig
from pipeline.measure import grid, results
from pipeline.measure.resources import BuildReport
from tests.factory import H200
from tests.mlflow_store import run_ids, shown
from tests.pipeline.measure.tiny import has_nvcc
from tests.project import KERNELS, MATRIX, PRESET, Project, by_point, ran, skipped, wait_until

pytestmark = [
    pytest.mark.xdist_group("end-to-end"),
    pytest.mark.skipif(shutil.which("git") is None, reason="needs git"),
]


def looked_into(*kernels: str) -> list[str]:
    """The stages that follow a change of what is measured: the sweep, and those that say why."""
    return [f"{stage}@{kernel}" for stage in MATRIX[1:] for kernel in kernels]


def points_of(project: Project, kernel: str, edit: dict[str, Any] | None = None) -> set[tuple[Any, ...]]:
    """The points that a sweep of the kernel should hold by its configuration."""
    conf = yaml.safe_load((project.root / "conf/kernel" / f"{kernel}.yaml").read_text())
    axes = GridConfig(**(conf["grid"][PRESET] | (edit or {}))).model_dump()
    return {
        (p.kernel, p.provider, p.size, p.dtype, p.block_size, p.num_warps, p.num_stages, p.rows)
        for p in grid.expand(kernels.load(kernel), None, [axes])
    }


def expected_status(provider: Provider, gpu: str) -> str:
    """What a point of the smallest grid has to come to, on this kind of machine."""
    kind = "cpu" if gpu.startswith("cpu-") else "cuda"
    if provider.is_triton and kind == "cpu":
        return "verified"
    return "ok" if kind in provider.devices else "unsupported"


def without_lock(tree: dict[str, str]) -> dict[str, str]:
    return {name: digest for name, digest in tree.items() if not name.endswith(".lock")}


def stored(project: Project) -> dict[str, dict[str, Any]]:
    """What the MLflow store shows, by kernel and run."""
    return {kernel: shown(project.root / "mlflow.db", kernel) for kernel in KERNELS}


@pytest.mark.parametrize("kernel", KERNELS)
def test_every_point_is_in_the_ledger_once_with_the_status_it_must_have(
    project: Project, kernel: str
) -> None:
    rows = by_point(project.rows(kernel))
    assert set(rows) == points_of(project, kernel)
    providers = {provider.name: provider for provider in kernels.load(kernel).providers}
    for row in rows.values():
        assert row["status"] == expected_status(providers[row["provider"]], project.gpu()), row
        if row["status"] == "ok":
            assert row["max_abs_err"] is not None, "no time without a verified output"
            assert row["n_samples"] == len(row["samples_us"]) > 0
            assert 0 < row["min_us"] <= row["p20_us"] <= row["median_us"] <= row["p80_us"]
            assert row["gbps"] > 0
        else:
            assert row["median_us"] is None
            assert row["samples_us"] is None
        assert row["error"] == {"unsupported": "needs a GPU"}.get(row["status"])
        assert (row["commit"], row["dirty"]) == (head_before_results(project), False)


def head_before_results(project: Project) -> str:
    return project.run("git", "rev-list", "--max-parents=0", "HEAD").stdout.strip()


def test_results_of_every_stage_are_there(project: Project) -> None:
    root, gpu = project.root, project.gpu()
    environment = project.read_json(f"results/environment/{gpu}.json")
    outside = {"image": None, "base_image": None}
    assert environment == project.read_json("build/environment.json") | outside
    assert json.loads((root / "results/ceilings" / f"{gpu}.json").read_bytes())["copy_gbps"] > 0
    for kernel in KERNELS:
        report = results.read(BuildReport, results.build_path(root / "results", kernel, gpu))
        if has_nvcc():
            assert {"80", "90", "100"} <= set(report.architectures)
            assert {row.architecture for row in report.functions} >= {"sm_80", "sm_90", "sm_100"}
            assert all(row.registers > 0 for row in report.functions)
        else:
            assert report.remarks
        assert (root / "reports/plots" / f"{kernel}.svg").is_file()
        assert kernel in (root / "reports/report.md").read_text()
    metrics = json.loads((root / "reports/metrics.json").read_bytes())
    assert {kernel: set(gpus) for kernel, gpus in metrics.items()} == {
        "softmax": {gpu},
        "square": {gpu, H200},
    }
    assert (root / "reports/report.html").is_file()
    assert all(f"{kernel} @ {gpu}" in runs for kernel, runs in stored(project).items())


def test_a_second_make_repro_runs_and_changes_nothing_and_ends_with_the_table(project: Project) -> None:
    before = project.tree()
    done = project.run("make", "repro", "VENV=", f"PYTHON={sys.executable}")
    assert ran(done.stdout) == ["environment"]
    every = [f"{stage}@{kernel}" for stage in MATRIX for kernel in KERNELS]
    assert sorted(skipped(done.stdout)) == sorted([*every, "ceilings", "report", "publish"])
    assert project.tree() == before

    lines = done.stdout.strip().splitlines()
    assert lines[-1] == "All machines side by side: reports/report.html. Every run in MLflow: make ui."
    header = next(number for number, line in enumerate(lines) if line.startswith("kernel "))
    chatter = [line for line in lines[header:] if re.search("git add|dvc |lock file", line)]
    assert not chatter, "DVC's own words come before the table"


def libraries(project: Project) -> dict[str, str]:
    """What was built; a stage that runs again finds it up to date."""
    return without_lock({k: v for k, v in project.tree().items() if k.startswith("build/")})


def test_an_edited_source_measures_its_providers_again(project: Project) -> None:
    """A kernel's Triton source concerns its Triton providers."""
    old, built = by_point(project.rows("softmax")), libraries(project)
    files = [project.root / name for name in project.run("git", "ls-files").stdout.splitlines()]
    before = {path: path.read_bytes() for path in files}
    project.edit("kernels/softmax/triton.py", lambda text: f"{text}\n# The same kernels.\n")
    due = ran(project.python("dvc", "repro", "--dry").stdout)
    assert {"build@softmax", *looked_into("softmax")} <= set(due)
    assert not {stage for stage in due if stage.endswith("@square")}
    stages = ran(project.python("dvc", "repro", "sweep@softmax").stdout)
    assert stages == ["environment", "build@softmax", "sweep@softmax"]
    assert libraries(project) == built

    new = by_point(project.rows("softmax"))
    assert set(new) == set(old)
    triton = {p.name for p in kernels.load("softmax").providers if p.is_triton}
    for point, row in new.items():
        if row["provider"] in triton:
            assert row["key"] != old[point]["key"]
            assert row["measured_at"] > old[point]["measured_at"]
            assert row["dirty"], "measured from an edit that no commit holds"
        else:
            assert row == old[point]
    # The stages that look into the new rows are the next test's: here the old ones come back.
    for path, content in before.items():
        path.write_bytes(content)
    assert project.repro() == ["environment"]


def test_a_killed_sweep_goes_on_where_it_was(project: Project) -> None:
    """A contract concerns all of its kernel, which is due then. DVC and a sweep are killed in the middle, as
    by a power cut."""
    old = {kernel: by_point(project.rows(kernel)) for kernel in KERNELS}
    built = libraries(project)
    project.edit("kernels/square/__init__.py", lambda text: f"{text}\n# The same contract.\n")
    ledger = project.ledger("square")
    size, lines = ledger.stat().st_size, len(old["square"])

    project.kill_sweep("square", when=lambda: ledger.stat().st_size > size)
    wait_until(lambda: not project.processes(), 20)  # the worker must not outlive its sweep
    text = ledger.read_bytes()
    appended = [json.loads(line) for line in text[size:].splitlines() if line.endswith(b"}")]
    survivors = by_point(appended)
    assert 0 < len(survivors) < lines, "killed in the middle"

    # What a crash may do beside: half a line.
    with ledger.open("ab") as file:
        file.write(text[size : size + 100])
    stages = project.repro()
    assert set(looked_into("square")) <= set(stages)
    assert set(stages) <= {"environment", "build@square", *looked_into("square"), "report", "publish"}
    assert libraries(project) == built

    assert by_point(project.rows("softmax")) == old["softmax"]
    new = by_point(project.rows("square"))
    assert set(new) == set(old["square"])
    for point, row in new.items():
        assert row["measured_at"] > old["square"][point]["measured_at"], "all of them were due"
        if point in survivors:
            assert (row["key"], row["measured_at"]) == (
                survivors[point]["key"],
                survivors[point]["measured_at"],
            )
    assert not project.processes()
    assert project.repro() == ["environment"]


def test_an_edited_grid_concerns_its_kernel_alone(project: Project) -> None:
    name = "conf/kernel/square.yaml"
    before = (project.root / name).read_text()
    project.edit(name, lambda text: text.replace("[37, 64]", "[37, 64, 96]", 1))
    try:
        due = ran(project.python("dvc", "repro", "--dry").stdout)
    finally:
        (project.root / name).write_text(before)
    assert set(looked_into("square")) <= set(due)
    assert not {stage for stage in due if stage.endswith("@softmax") or stage.startswith("build@")}


def test_a_lost_store_is_made_again_from_the_files(project: Project) -> None:
    root = project.root
    before = stored(project)
    ids = [run_ids(root / "mlflow.db", kernel) for kernel in KERNELS]
    project.python("pipeline.publish")
    assert [run_ids(root / "mlflow.db", kernel) for kernel in KERNELS] == ids, "nothing to do"

    for path in root.glob("mlflow.db*"):
        path.unlink()
    shutil.rmtree(root / "mlartifacts")
    done = project.python("pipeline.publish")
    assert stored(project) == before
    uploads = {path.name for path in (root / "mlartifacts/softmax").rglob("*") if path.is_file()}
    assert {f"{project.gpu()}.jsonl", "report.html"} <= uploads
    assert "make ui" in done.stdout.splitlines()[-1]


def test_dvc_compares_metrics_params_and_plots(project: Project) -> None:
    """The comparisons that the README promises."""
    project.set_param("preset", "cpu")
    try:
        difference = json.loads(project.python("dvc", "params", "diff", "--json").stdout)
    finally:
        project.set_param("preset", PRESET)
    assert difference == {"params.yaml": {"preset": {"old": PRESET, "new": "cpu"}}}

    # Since the commit that had no results.
    start = head_before_results(project)
    found = json.loads(project.python("dvc", "metrics", "diff", "--json", start).stdout)
    names = {name.split(".")[0] for name in found["reports/metrics.json"]}
    assert names == set(KERNELS)
    assert any(name.endswith(".gbps") for name in found["reports/metrics.json"])

    shown_at = project.python("dvc", "plots", "show").stdout
    page = (project.root / "dvc_plots/index.html").read_text()
    assert "dvc_plots/index.html" in shown_at
    assert all(f"{kernel}.csv" in page for kernel in KERNELS)
    assert "dvc_plots" not in project.run("git", "status", "--porcelain").stdout


PINNED = ("torch", "triton_online", "cpp")
AD_HOC = (
    *("pipeline.sweep", "kernel=softmax", "block_size=256", f"preset={PRESET}", "size=64"),
    f"provider=[{','.join(PINNED)}]",
)


def test_an_ad_hoc_sweep_measures_once_and_publishes_when_there_is_a_tracker(project: Project) -> None:
    def elsewhere() -> dict[str, str]:
        return project.tree("outputs/", "mlflow.db", "mlartifacts/")

    shutil.rmtree(project.root / "outputs", ignore_errors=True)
    before = elsewhere()
    nobody = {"MLFLOW_TRACKING_URI": "http://127.0.0.1:9"}
    failed = project.python(*AD_HOC, ok=False, env=nobody)
    assert failed.stderr.startswith("error: can't publish to http://127.0.0.1:9: connection refused.")
    assert len(failed.stderr.splitlines()) == 1
    rows = by_point(project.rows("softmax", "outputs"))
    assert set(rows) == {p for p in points_of(project, "softmax") if p[2] == 64 and p[1] in PINNED}
    assert f"{len(rows)} points measured" in failed.stdout

    again = re.search(r"once the store can be used, run: python -m (.+)", failed.stderr)
    assert again, failed.stderr
    published = project.python(*again[1].split()).stdout
    link = r"^Run `make ui` and open http://127\.0\.0\.1:5000/#/experiments/\d+/runs\?\S+$"
    assert re.search(link, published, re.MULTILINE), published
    assert len(shown(project.root / "mlflow.db", "softmax")) == 1 + len(rows)

    second = project.python(*AD_HOC).stdout
    assert "Nothing to measure" in second
    assert "0 points measured" in second
    assert re.search(link, second, re.MULTILINE), second
    assert by_point(project.rows("softmax", "outputs")) == rows
    assert elsewhere() == before, "written to outputs/ and the store alone"


@pytest.mark.skipif(
    len(os.sched_getaffinity(0)) < 2, reason="needs two cores: with one it is another machine"
)
def test_another_environment_measures_anew_and_keeps_other_machines(project: Project) -> None:
    """Fewer cores are another environment, and cost no compiling; an H200's results came with git."""
    project.set_param("kernels", "[square]")
    old = {kernel: by_point(project.rows(kernel)) for kernel in KERNELS}

    def of_h200() -> dict[str, str]:
        files = project.tree().items()
        return {name: digest for name, digest in files if name.startswith("results/") and H200 in name}

    foreign = of_h200()
    assert len(foreign) >= 5

    one_core = ("taskset", "--cpu-list", str(min(os.sched_getaffinity(0))), "python", "-m")
    repro = (*one_core, "dvc", "repro", "sweep@square")
    every = ["environment", "build@square", "ceilings", "sweep@square"]
    assert sorted(ran(project.run(*repro).stdout)) == sorted(every)
    for stage in ("report", "publish"):
        project.run(*one_core, f"pipeline.{stage}")
    new = by_point(project.rows("square"))
    assert set(new) == set(old["square"])
    for point, row in new.items():
        assert row["environment"] != old["square"][point]["environment"]
        assert row["measured_at"] > old["square"][point]["measured_at"]
    assert by_point(project.rows("softmax")) == old["softmax"]
    assert of_h200() == foreign

    gpus = {H200, project.gpu()}
    metrics = json.loads((project.root / "reports/metrics.json").read_bytes())
    assert set(metrics["square"]) == gpus
    assert {f"square @ {gpu}" for gpu in gpus} <= set(shown(project.root / "mlflow.db", "square"))
    page = (project.root / "reports/report.md").read_text()
    for gpu in gpus:
        assert json.loads((project.root / f"results/environment/{gpu}.json").read_bytes())["name"] in page
    assert ran(project.run(*repro).stdout) == ["environment"]
