"""The pipeline as a user runs it: real processes, DVC, compilers and MLflow, in its own repository.

Each test changes something and checks the consequences. Each leaves the repository reproduced, so that any
test can run alone.
"""

import fcntl
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from typing import Any
from urllib.parse import unquote

import pytest

from kernel_pipeline.contract import Provider
from kernel_pipeline.machine import device
from kernel_pipeline.records.environment import UNKEYED
from kernel_pipeline.records.measurement import Measurement
from kernel_pipeline.records.point import Point
from kernel_pipeline.toolchain.resources import BuildReport
from pipeline.points import catalog
from pipeline.points.plan import Target, plan
from pipeline.store import finals, results, turns
from pipeline.store.rows import Reader
from tests.factory import H200
from tests.mlflow_store import shown
from tests.project import KERNELS, MEASURING, PRESET, STAGES, Project, is_measured, ran, skipped, wait_until

pytestmark = [
    pytest.mark.slow,
    pytest.mark.xdist_group("end-to-end"),
    pytest.mark.skipif(shutil.which("git") is None, reason="needs git"),
]


@pytest.fixture
def before(project: Project) -> Iterator[dict[str, bytes]]:
    """Yield the state of the files before the test. They are also restored after it, so that a failed test
    does not make the following tests fail."""
    state = project.state()
    yield state
    project.put_back(state)


def points_of(kernel: str) -> set[Point]:
    """Return the points that a sweep of the kernel must hold."""
    here = device.resolve("auto")
    target = Target(here.kind, device.capabilities(here))
    return {point for point in plan(catalog.find(kernel), PRESET, target).points if is_measured(point)}


def provider_of(point: Point) -> Provider:
    return catalog.find(point.kernel).loaded.kernel.provider(point.provider)


def without_lock(tree: dict[str, str]) -> dict[str, str]:
    return {name: digest for name, digest in tree.items() if not name.endswith(".lock")}


def stored(project: Project) -> dict[str, dict[str, Any]]:
    """Return the runs that the MLflow store shows, by kernel and name."""
    return {kernel: shown(project.root / "mlflow.db", kernel) for kernel in KERNELS}


def of_h200(project: Project) -> dict[str, str]:
    """Return the hashes of the H200's results, which came with git."""
    files = project.tree().items()
    return {name: digest for name, digest in files if name.startswith("results/") and H200 in name}


@pytest.mark.parametrize("kernel", KERNELS)
def test_every_point_is_in_the_ledger_once_with_the_status_it_must_have(
    project: Project, kernel: str
) -> None:
    rows = project.rows(kernel)
    assert set(rows) == points_of(kernel)
    on_cpu = project.gpu().startswith("cpu-")
    for point, row in rows.items():
        interpreted = on_cpu and provider_of(point).interpreted
        assert row.outcome.status == ("verified" if interpreted else "ok"), row
        timing = row.outcome.timing
        assert (timing is None) == interpreted
        if timing is not None:
            assert timing.n_samples == len(timing.samples_us) > 0
            assert 0 < timing.min_us <= timing.p20_us <= timing.median_us <= timing.p80_us
        origin = row.origin
        assert (origin.commit, origin.dirty, origin.tool) == (head_before_results(project), False, None)
        assert origin.command == (
            f"python -m pipeline.sweep kernel={','.join(KERNELS)} preset={PRESET} device=auto output=results "
            "allow=all"
        )
    assert len({row.origin.run for row in rows.values()}) == 1


def head_before_results(project: Project) -> str:
    """Return the commit at which the pipeline ran."""
    return project.run("git", "rev-list", "--reverse", "HEAD").stdout.split()[1]


def test_results_of_every_stage_are_there(project: Project) -> None:
    gpu = project.gpu()
    place, reports = project.place("results"), project.place("reports")
    environment = json.loads((place / "environment" / f"{gpu}.json").read_bytes())
    inside = project.read_json("build/environment.json")
    assert {name: value for name, value in environment.items() if name not in UNKEYED} == inside
    assert json.loads((place / "ceilings" / f"{gpu}.json").read_bytes())["copy_gbps"] > 0
    for kernel in KERNELS:
        report = results.read(BuildReport, results.build_path(place, kernel, gpu))
        if gpu.startswith("cpu-"):
            assert [remark for remark in report.remarks if "this machine has no GPU that runs it" in remark]
        else:
            assert report.functions and all(row.registers > 0 for row in report.functions)
        held = finals.read(finals.path(place, kernel, gpu), pytest.fail)
        rows = project.rows(kernel)
        assert {row.point for row in held} <= set(rows)
        timed = [p for p, row in rows.items() if row.outcome.timing and p.problem["columns"] == 64]
        assert timed
        rounds = turns.read(finals.rounds_path(place, kernel, gpu), pytest.fail)
        if held or all(turn.timing is not None for turn in rounds):  # else the machine was too busy to tell
            assert {row.point.provider for row in held} == {point.provider for point in timed}
        assert kernel in (reports / "report.md").read_text()
    assert (reports / "plots/square.svg").is_file(), "it has several sizes"
    metrics = json.loads((reports / "metrics.json").read_bytes())
    assert {kernel: set(gpus) for kernel, gpus in metrics.items()} == {
        "softmax": {gpu},
        "square": {gpu, H200},
    }
    assert (reports / "report.html").is_file()
    assert all(f"{kernel} @ {gpu}" in runs for kernel, runs in stored(project).items())


@pytest.mark.skipif(not device.resolve("auto").slug.startswith("cpu-"), reason="of a host without a GPU")
def test_what_a_cpu_gave_stays_on_its_host(project: Project) -> None:
    """A host's CPU is not a machine that others have, so the repository keeps only results and reports of
    GPUs."""
    commit = project.run("git", "log", "-1", "--format=%H", "--", "dvc.lock").stdout.strip()
    changed = project.run("git", "show", "--name-only", "--format=", commit).stdout.split()
    assert changed == ["dvc.lock"]
    foreign = [name for name in project.tree() if name.startswith(("results/", "reports/"))]
    assert foreign and not [name for name in foreign if "cpu-" in name]
    assert project.gpu() not in (project.root / "reports/report.md").read_text()
    assert H200 in (project.root / "local/reports/metrics.json").read_text(), "here both stand side by side"


def test_a_second_make_repro_runs_and_changes_nothing_and_ends_with_the_table(project: Project) -> None:
    before = project.tree("local/repro.log")
    done = project.run("make", "repro", "VENV=", f"PYTHON={sys.executable}")
    log = (project.root / "local/repro.log").read_text()
    assert ran(log) == ["environment"]
    assert sorted(["environment", *skipped(log)]) == sorted(STAGES)
    assert project.tree("local/repro.log") == before

    assert done.stdout.startswith(log)
    lines = done.stdout.removeprefix(log).strip().splitlines()
    page = project.place("reports").relative_to(project.root) / "report.html"
    assert lines[-2].endswith(f"All machines side by side: {page}. Every run in MLflow: make ui.")
    rows = sum(len(project.rows(kernel)) for kernel in KERNELS)
    cloned = sum(path.read_bytes().count(b"\n") for path in project.root.glob("results/timings/*/*.jsonl"))
    if project.gpu().startswith("cpu-"):
        measured = f"{rows} rows were measured in this checkout, none of them now"
        assert lines[-1] == f"{measured}; {cloned} came with the clone ({H200})."
    assert project.run("git", "status", "--porcelain").stdout == ""
    shown = [line.split()[0] for line in lines if line.startswith(KERNELS)]
    # If a CPU's cache holds hundreds of MB, the smallest problems cannot be measured with a cold cache.
    timings = {kernel: [row.outcome.timing for row in project.rows(kernel).values()] for kernel in KERNELS}
    cold = {kernel for kernel, some in timings.items() if any(one and one.cache == "cold" for one in some)}
    assert cold and set(shown) == cold
    assert len(lines) <= 24, "it fits a screen"


def test_dvc_runs_nothing_again_after_make_repro_has_put_gits_lock_back(
    project: Project, before: dict[str, bytes]
) -> None:
    """DVC finds in its run cache the stages that the lock of a clone lacks. Only the environment stage
    runs."""
    (project.root / "dvc.lock").write_text("schema: '2.0'\nstages: {}\n")
    for path in (project.root / "build").glob("*.done"):
        path.unlink()
    out = project.python("dvc", "repro").stdout
    assert ran(out) == ["environment"]
    assert sorted(["environment", *skipped(out)]) == sorted(STAGES)
    project.put_back(before)


def nothing_activated(project: Project) -> str:
    """Return a PATH whose ``python`` lacks this project's packages. The ``python`` in .venv has them."""
    other, own = project.root.parent / "bin", project.root / ".venv/bin"
    for folder, script in ((other, "exit 1"), (own, f'exec {sys.executable} "$@"')):
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "python").write_text(f"#!/bin/sh\n{script}\n")
        (folder / "python").chmod(0o755)
    return f"{other}:/usr/bin:/bin"


@pytest.mark.long
def test_an_experiment_in_a_folder_of_its_own_leaves_the_checkout_as_it_was(project: Project) -> None:
    """The `python` on PATH is another Python without this project's packages, and .venv's is taken."""
    path = nothing_activated(project)
    tree = project.tree()
    dvc = [sys.executable, "-m", "dvc"]
    try:
        project.run(
            *(*dvc, "exp", "run", "--temp", "-n", "tried", "-S", "kernels=square", "environment"),
            env={"PATH": path},
        )
    finally:
        shutil.rmtree(project.root / ".venv")
    assert project.tree() == tree
    assert project.run("git", "status", "--porcelain").stdout == ""
    shown = project.python("dvc", "exp", "diff", "HEAD", "tried", "--json").stdout
    assert json.loads(shown)["params"]["params.yaml"]["kernels"]["new"] == "square"
    project.python("dvc", "exp", "remove", "tried")

    failed = project.run(*dvc, "repro", "environment", ok=False, env={"PATH": path})
    assert "run make setup, or activate their environment" in failed.stderr
    project.python("dvc", "repro", "environment")  # DVC has removed the output of the stage that failed


def test_a_second_make_repro_beside_one_is_refused_and_the_log_of_the_first_stays(project: Project) -> None:
    log = project.root / "local/repro.log"
    before = log.read_text() if log.exists() else ""
    with log.open("a") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        refused = project.python("pipeline.repro", ok=False)
    sentence = "error: another make repro runs in this checkout, and writes local/repro.log.\n"
    assert (refused.returncode, refused.stdout, refused.stderr) == (2, "", sentence)
    assert log.read_text() == before


def libraries(project: Project) -> dict[str, str]:
    """Return the files below build/, without locks. A stage that runs again finds them up to date."""
    return without_lock({k: v for k, v in project.tree().items() if k.startswith("build/")})


def due(project: Project) -> set[str]:
    """Return the stages that DVC would run."""
    return set(ran(project.python("dvc", "repro", "--dry").stdout))


def test_an_edit_of_what_explains_and_shows_measures_nothing_again_and_one_of_a_grid_builds_nothing(
    project: Project, before: dict[str, bytes]
) -> None:
    for name in ("pipeline/inspection/sass.py", "pipeline/reporting/tables.py"):
        project.edit(name, lambda text: f"{text}\n\nMORE = 1\n")
    stages = due(project)
    project.put_back(before)
    assert stages == {"environment", "profile", "counters", "codegen", "report", "publish"}
    more = "workloads:\n  smoke: {size: [37, 64, 96]}\n"
    project.edit("conf/kernel/square.yaml", lambda text: f"{text}{more}")
    stages = due(project)
    project.put_back(before)
    assert set(MEASURING) <= stages
    assert "build" not in stages


@pytest.mark.long
def test_an_edited_definition_measures_its_providers_again_and_a_comment_none(
    project: Project, before: dict[str, bytes]
) -> None:
    old, built = project.rows("softmax"), libraries(project)
    source = "kernels/softmax/triton.py"
    project.edit(source, lambda text: f"{text}\n\n# The same kernels.\n")
    assert {"build", *MEASURING} <= due(project)
    assert ran(project.python("dvc", "repro", "sweep").stdout) == ["environment", "sweep"]
    assert project.rows("softmax") == old, "a comment measures nothing again"
    assert libraries(project) == built

    project.edit(
        source,
        lambda text: text.replace("range(0, columns, BLOCK_SIZE)", "range(0, 0 + columns, BLOCK_SIZE)"),
    )
    others = project.rows("square")
    assert "sweep" in ran(project.python("dvc", "repro", "sweep").stdout)
    assert project.rows("square") == others
    new = project.rows("softmax")
    assert set(new) == set(old)
    for point, row in new.items():
        if point.provider == "triton_online":
            assert row.parts.differences(old[point].parts) == ["source"]
            assert row.origin.measured_at > old[point].origin.measured_at
            assert row.origin.dirty, "measured from an edit that no commit holds"
        else:
            assert row == old[point]
    project.put_back(before)
    assert project.repro() == ["environment"]


def test_a_stopped_and_a_killed_sweep_go_on_where_they_were_and_an_edit_taken_back_is_measured_again(
    project: Project, before: dict[str, bytes]
) -> None:
    """An edited reference makes all points of its kernel due. `make repro` is stopped by Ctrl-C. Then DVC and
    the sweep are killed halfway, as by a power cut."""
    old: dict[str, dict[Point, Measurement]] = {kernel: project.rows(kernel) for kernel in KERNELS}
    built = libraries(project)
    name = "kernels/square/reference.py"
    project.edit(name, lambda text: text.replace("x.double()", "(x.double())[:]"))
    ledger = project.ledger("square")
    size, lines = ledger.stat().st_size, len(old["square"])

    process = subprocess.Popen(
        ["python", "-m", "pipeline.repro"],
        cwd=project.root,
        env=project.env,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    wait_until(lambda: ledger.stat().st_size > size or process.poll() is not None)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=120)
    assert process.returncode == 128 + signal.SIGINT, out + err
    assert err == "error: dvc repro was stopped. Its whole output is in local/repro.log.\n"
    assert not project.processes()
    kept = {point: row for point, row in project.rows("square").items() if row.origin.dirty}
    assert 0 < len(kept) < lines

    size = ledger.stat().st_size
    project.kill_sweep(when=lambda: ledger.stat().st_size > size)
    wait_until(lambda: not project.processes())  # the worker must end with its sweep
    text = ledger.read_bytes()
    reader = Reader(ledger, Measurement)
    whole = [line for line in text[size:].splitlines() if line.endswith(b"}")]
    survivors = kept | {row.point: row for row in map(reader.row, whole)}
    assert len(kept) < len(survivors) < lines, "killed in the middle"

    # A crash can also leave half a line.
    with ledger.open("ab") as file:
        file.write(text[size : size + 100])
    stages = ran(project.python("dvc", "repro", "sweep").stdout)
    assert "sweep" in stages
    assert set(stages) <= {"environment", "sweep"}
    assert libraries(project) == built

    assert project.rows("softmax") == old["softmax"]
    new = project.rows("square")
    assert set(new) == set(old["square"])
    for point, row in new.items():
        assert row.origin.measured_at > old["square"][point].origin.measured_at, "all of them were due"
        assert point not in survivors or row.key == survivors[point].key
        assert point not in survivors or row.origin.run == survivors[point].origin.run, "measured once"
    assert not project.processes()

    # The rows of the edited code replaced the earlier rows. A host without a GPU has no copy of those in git.
    (project.root / name).write_bytes(before[name])
    assert "sweep" in ran(project.python("dvc", "repro", "sweep").stdout)
    project.put_back(before)
    assert project.repro() == ["environment"]


PINNED = ("torch", "triton_online", "cpp")
AD_HOC = (
    *("pipeline.sweep", "kernel=softmax", "block_size=256", "dtype=float32", f"preset={PRESET}"),
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
    rows = project.rows("softmax", project.root / "outputs")
    (run,) = {row.origin.run for row in rows.values()}
    wanted = points_of("softmax")
    assert set(rows) == {
        point for point in wanted if point.provider in PINNED and point.problem["dtype"] == "float32"
    }
    assert f"{len(rows)} points measured" in failed.stdout

    again = re.search(r"Once the store can be used, run: python -m (.+)", failed.stderr)
    assert again, failed.stderr
    published = project.python(*again[1].split()).stdout
    link = re.search(
        r"^Run `make ui` and open (http://127\.0\.0\.1:5000/#/experiments/\d+/runs\?\S+)$", published, re.M
    )
    assert link and f"tags.run = '{run}'" in unquote(link[1]), published
    runs = shown(project.root / "mlflow.db", "softmax")
    assert sum(name.endswith(run) for name in runs) == 1 + len(rows), "beside those of results"

    second = project.python(*AD_HOC).stdout
    assert "Nothing to measure" in second
    assert "0 points measured" in second
    assert link[0] in second, "the same link"
    assert project.rows("softmax", project.root / "outputs") == rows
    assert elsewhere() == before, "written to outputs/ and the store alone"


@pytest.mark.long
@pytest.mark.skipif(
    len(os.sched_getaffinity(0)) < 2, reason="needs two cores: with one it is another machine"
)
def test_another_environment_measures_anew_and_keeps_other_machines(
    project: Project, before: dict[str, bytes]
) -> None:
    """Running on fewer cores makes another environment without any compiling. The H200's results came with
    git."""
    old, foreign = project.rows("square"), of_h200(project)
    project.set_param("kernels", "square")
    assert len(foreign) >= 5
    one_core = ("taskset", "--cpu-list", str(min(os.sched_getaffinity(0))), "python", "-m")
    repro = (*one_core, "dvc", "repro", "sweep")
    every = ["environment", "sweep"]
    assert sorted(ran(project.run(*repro).stdout)) == sorted(every)
    new = project.rows("square")
    assert set(new) == set(old)
    on_cpu = project.gpu().startswith("cpu-")
    for point, row in new.items():
        changed = row.parts.differences(old[point].parts)
        assert changed == (["environment"] if on_cpu else []), "a GPU does not feel its host's cores"
        assert (row.origin.run != old[point].origin.run) == on_cpu
    assert of_h200(project) == foreign
    project.put_back(before)
    project.python("pipeline.environment")
    assert project.repro() == ["environment"]
