"""Nsight Compute counters: which points are counted, which are counted again, and what happens on a machine
that cannot count.

A fake ncu returns pages of reports that were made on an H200.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

from kernel_pipeline import json_lines
from kernel_pipeline.contract import Gpu
from kernel_pipeline.execution.compile_pool import Compilers
from kernel_pipeline.machine import device
from kernel_pipeline.machine.device import Device
from kernel_pipeline.records.point import Point
from kernel_pipeline.records.settings import TimingSettings
from kernel_pipeline.toolchain import extension
from kernel_pipeline.toolchain.extension import Place
from pipeline import counters as stage
from pipeline.command.options import CountersConfig
from pipeline.command.run import run_each
from pipeline.inspection import ncu_session, target
from pipeline.inspection.ncu import Ncu
from pipeline.keys.identity import Identity
from pipeline.points import catalog
from pipeline.store.evidence import ProfileRow
from tests import factory
from tests.commands import exit_code
from tests.pipeline.inspection.fake_ncu import PAGES, fake
from tests.planted import outside

LAYERNORM, SOFTMAX = "9acf7a496546aac2", "042f75208056a6bf"
"""Keys of two points in the recorded reports, with one launch each."""
B = "b" * 16


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Record the libraries and points that are compiled before ncu starts."""
    found: list[str] = []

    def build(place: Place, sources: Sequence[str]) -> None:
        found.extend(f"{place.name}/{source}" for source in sources)

    monkeypatch.setattr(extension, "build", build)

    def submit(self: Compilers, where: str, points: Sequence[Point]) -> dict[Point, Future[None]]:
        found.extend(f"{where}/{point.provider}" for point in points)
        return {point: Future() for point in points}

    monkeypatch.setattr(Compilers, "submit", submit)
    return found


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch, compiled: list[str]) -> None:
    """Make the stage see an H200."""
    chosen = Device(kind="cuda", name="NVIDIA H200", index=0)
    monkeypatch.setattr(device, "resolve", lambda wanted: chosen)
    monkeypatch.setattr(device, "capabilities", lambda one: Gpu((9, 0), 132, 227 << 10, 50 << 20))
    monkeypatch.setattr(target, "fingerprint", lambda one: factory.environment())


@pytest.fixture
def on_a_gpu(monkeypatch: pytest.MonkeyPatch, gpu: None) -> None:
    """Make the stage see an H200 without results."""
    monkeypatch.setattr(target.results, "timed", lambda *_: {})


@pytest.fixture
def known_as(monkeypatch: pytest.MonkeyPatch) -> Callable[[Mapping[str, str]], None]:
    """Return a function that gives the points of providers the keys of recorded points."""

    def give(keys: Mapping[str, str]) -> None:
        monkeypatch.setattr(Identity, "key", lambda self, point: keys[point.provider])

    return give


Rows = list[dict[str, Any]]
Command = Callable[..., Rows]
FakeNcu = Callable[..., Path]


@pytest.fixture
def command(tmp_path: Path) -> Command:
    """Return a function that runs the stage and returns its rows."""

    def run(*options: str, code: int = 0, kernel: str = "softmax", preset: str = "smoke") -> Rows:
        fixed = [f"kernel={kernel}", f"preset={preset}", "size=64"]
        fixed += [f"output={tmp_path}/results", f"artifacts={tmp_path}/artifacts"]
        assert exit_code(run_each, "counters", CountersConfig, stage.run, *fixed, *options) == code
        found = tmp_path.glob("results/counters/*/*.jsonl")
        return [json.loads(line) for path in found for line in path.read_text().splitlines()]

    return run


@pytest.fixture
def fake_ncu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeNcu:
    """Return a function that puts a fake ncu on PATH."""

    def put(**options: Any) -> Path:
        program = fake(tmp_path, **options)
        monkeypatch.setenv("PATH", str(program.parent), prepend=":")
        return program

    return put


REFUSED = "echo '==ERROR== ERR_NVGPUCTRPERM'; exit 1"
"""What an ncu does that may not read counters."""


def sessions(folder: Path) -> int:
    """Return the number of profiling sessions that ncu was started for."""
    return (folder / "calls").read_text().count("--export")


def test_the_stage_joins_the_report_to_its_points(
    command: Command,
    fake_ncu: FakeNcu,
    tmp_path: Path,
    on_a_gpu: None,
    known_as: Callable[[Mapping[str, str]], None],
    capsys: pytest.CaptureFixture[str],
) -> None:
    known_as({"triton_row": LAYERNORM, "triton_online": SOFTMAX})
    fake_ncu()
    rows = command("provider=[triton_online,triton_row]")
    assert {row["tool"] for row in rows} == {"ncu 2025.3.1"}
    assert [(row["key"], row["status"]) for row in rows] == [(LAYERNORM, "ok"), (SOFTMAX, "ok")]
    first = rows[0]
    assert (first["point"]["provider"], first["bound"]) == ("triton_row", "memory")
    assert first["report"].startswith("counters/softmax/nvidia-h200/")
    assert (tmp_path / "artifacts" / first["report"]).exists()
    assert "memory limits it: memory throughput 80 %" in capsys.readouterr().out

    profiling = next(line for line in (tmp_path / "calls").read_text().splitlines() if "--export" in line)
    for words in (
        "--profile-from-start off",
        "--nvtx",
        "--clock-control none",
        "--set full",
        "application-only",
    ):
        assert words in profiling
    assert "-m pipeline.inspection.watched_process" in profiling


@pytest.fixture
def two_kernels(monkeypatch: pytest.MonkeyPatch, on_a_gpu: None) -> None:
    """Give the points of two kernels the keys of recorded points."""
    keys = {"softmax": SOFTMAX, "layernorm": LAYERNORM}
    monkeypatch.setattr(Identity, "key", lambda self, point: keys[point.kernel])


def test_kernels_share_a_session_and_each_keeps_its_own(
    command: Command, fake_ncu: FakeNcu, tmp_path: Path, two_kernels: None
) -> None:
    fake_ncu()
    rows = command("provider=triton_row", kernel="[softmax,layernorm]")
    found = {row["point"]["kernel"]: row for row in rows}
    assert {name: (row["key"], row["status"]) for name, row in found.items()} == {
        "softmax": (SOFTMAX, "ok"),
        "layernorm": (LAYERNORM, "ok"),
    }
    assert sessions(tmp_path) == 1
    for name, (own, other) in {"softmax": (SOFTMAX, LAYERNORM), "layernorm": (LAYERNORM, SOFTMAX)}.items():
        report = tmp_path / "artifacts" / found[name]["report"]
        assert report.is_file() and report.parent == tmp_path / "artifacts/counters" / name / "nvidia-h200"
        for page in ("raw", "details"):
            text = report.with_suffix(f".{page}.csv").read_text()
            assert own in text and other not in text
            assert all(own in line for line in text.splitlines()[2:])


def test_a_kernel_that_breaks_the_session_costs_no_other_its_counters(
    command: Command, fake_ncu: FakeNcu, tmp_path: Path, two_kernels: None
) -> None:
    """ncu ends without a report if layernorm's points are in the list that its process runs."""
    does = f"""for last in "$@"; do plan=$before; before=$last; done
if grep -q {LAYERNORM} "$plan"; then echo Killed; exit 1; fi; touch "$report.ncu-rep" """
    fake_ncu(does=does)
    rows = command("provider=triton_row", kernel="[softmax,layernorm]")
    assert {row["point"]["kernel"]: row["status"] for row in rows} == {
        "softmax": "ok",
        "layernorm": "unavailable",
    }
    assert sessions(tmp_path) == 3


def test_what_points_need_is_compiled_before_ncu_starts(
    command: Command, fake_ncu: FakeNcu, monkeypatch: pytest.MonkeyPatch, on_a_gpu: None, compiled: list[str]
) -> None:
    at_start: list[str] = []
    session = ncu_session.session

    def started(*words: Any) -> Any:
        at_start.extend(() if at_start else compiled)
        return session(*words)

    monkeypatch.setattr(stage, "session", started)
    fake_ncu()
    command("provider=[cuda,triton_row]", kernel="[softmax,layernorm]")
    of_libraries = {"softmax/cuda.cu", "layernorm/cuda.cu"}
    assert set(at_start) == of_libraries | {"softmax/triton_row", "layernorm/triton_row"}
    assert len(at_start) == 4


@pytest.fixture
def timed(fake_ncu: FakeNcu, monkeypatch: pytest.MonkeyPatch, gpu: None) -> None:
    """Provide a GPU, one timed point, and an ncu without permission to read counters."""
    row = factory.measurement("softmax", "triton_row", 64, num_warps=8)
    monkeypatch.setattr(target.KernelTarget, "timed", lambda self, warn: {row.point: row})
    fake_ncu(does=REFUSED)


def test_a_first_look_counts_the_best_and_the_baseline(command: Command, timed: None) -> None:
    roles = {
        preset: {one["role"] for one in command("num_warps=[4,8]", preset=preset)}
        for preset in ("smoke", "quick")
    }
    assert roles == {"smoke": {"best", "default", "baseline"}, "quick": {"best", "baseline"}}


def test_a_first_look_leaves_out_a_baseline_of_many_kernels_unless_it_is_named(
    command: Command, tmp_path: Path, timed: None
) -> None:

    def roles(*options: str, preset: str = "quick") -> set[str]:
        made = command("num_warps=[4,8]", *options, preset=preset)
        return {one["role"] for one in made}

    (torch,) = (one for one in command(preset="quick") if one["role"] == "baseline")
    path = tmp_path / "results/profile/softmax/nvidia-h200.jsonl"
    for launches, expected in (8.0, {"best", "baseline"}), (9.0, {"best"}):
        seen = ProfileRow(
            key=torch["key"],
            kernel="softmax",
            point=torch["point"],
            status="ok",
            launches=launches,
            sentence="",
            environment="",
        )
        json_lines.write(path, [seen])
        assert roles() == expected
    assert roles("provider=[torch,triton_row]") == {"provider"}
    assert "baseline" in roles(preset="smoke")


def test_where_nothing_can_be_counted_one_try_says_so(
    command: Command, fake_ncu: FakeNcu, tmp_path: Path, two_kernels: None
) -> None:
    fake_ncu(does=REFUSED)
    rows = command("provider=triton_row", kernel="[softmax,layernorm]")
    assert [row["status"] for row in rows] == ["unavailable"] * 2 and sessions(tmp_path) == 1


def test_only_what_changed_is_counted_again(
    command: Command,
    fake_ncu: FakeNcu,
    tmp_path: Path,
    on_a_gpu: None,
    known_as: Callable[[Mapping[str, str]], None],
    capsys: pytest.CaptureFixture[str],
) -> None:
    fake_ncu()
    both = "provider=[triton_online,triton_row]"
    known_as({"triton_row": LAYERNORM, "triton_online": B})
    first = command(both)
    assert [(row["key"], row["status"]) for row in first] == [(LAYERNORM, "ok"), (B, "error")]
    assert sessions(tmp_path) == 1

    known_as({"triton_row": LAYERNORM, "triton_online": SOFTMAX})
    second = command(both)
    assert second[0] == first[0], "it is as it was, and so is its report"
    assert [(row["key"], row["status"]) for row in second] == [(LAYERNORM, "ok"), (SOFTMAX, "ok")]
    reports = {row["report"] for row in second}
    assert len(reports) == 2, "of what was counted now there is a report of its own"
    assert {str(path.relative_to(tmp_path / "artifacts")) for path in tmp_path.rglob("*.ncu-rep")} == reports
    assert sessions(tmp_path) == 2

    capsys.readouterr()
    assert command(both) == second
    printed = capsys.readouterr().out
    assert printed.startswith("Nothing to count: ") and printed.count("\n") == 1
    assert sessions(tmp_path) == 2

    (one,) = command("provider=triton_online")
    assert one == second[1], "the other is no longer chosen"
    assert [str(path.relative_to(tmp_path / "artifacts")) for path in tmp_path.rglob("*.ncu-rep")] == [
        one["report"]
    ]
    assert len(list(tmp_path.rglob("*.csv"))) == 2
    assert sessions(tmp_path) == 2

    command("provider=triton_online", "sets=basic")
    assert sessions(tmp_path) == 3, "other counters were not counted yet"


def test_after_an_edit_of_one_provider_its_points_alone_are_counted(
    command: Command, fake_ncu: FakeNcu, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, on_a_gpu: None
) -> None:
    """The plan of ncu's process holds only the points that are counted."""
    made = outside.write(tmp_path)
    # Pretend that each point launched a kernel.
    monkeypatch.setattr(
        ncu_session, "by_point", lambda raw, details: {key: [{"launch": 0}] for key in asked[-1]}
    )
    asked: list[list[str]] = []
    does = f"""for last in "$@"; do plan=$before; before=$last; done; cp "$plan" '{tmp_path}/plan.json'
touch "$report.ncu-rep" """
    fake_ncu(does=does)
    page = Ncu.page

    def with_plan(self: Ncu, report: Path, name: str) -> str:
        plan = json.loads((tmp_path / "plan.json").read_text())
        assert ({one["where"] for one in plan["points"]}, plan["seed"]) == ({str(made)}, 0)
        asked.append([one["name"] for one in plan["points"]])
        assert all(Point.from_dict(one["point"]).kernel == "double" for one in plan["points"])
        return page(self, report, name)

    monkeypatch.setattr(Ncu, "page", with_plan)
    both = "provider=[whole,pieces]"
    first = command(both, kernel=str(made))
    assert [row["point"]["provider"] for row in first] == ["whole", "pieces"]
    assert asked[-1] == [row["key"] for row in first]
    outside.edit(made)
    second = command(both, kernel=str(made))
    assert second[0] == first[0]
    assert second[1]["key"] != first[1]["key"]
    assert asked[-1] == [second[1]["key"]]


def test_the_best_by_the_ledger_its_default_and_the_baseline_are_counted(
    command: Command, fake_ncu: FakeNcu, tmp_path: Path, gpu: None
) -> None:
    softmax = catalog.find("softmax").loaded
    settings = TimingSettings(min_samples=5, max_seconds=0.05)
    digest = Identity(softmax, factory.environment(), settings, 0).settings_digest
    rows = [
        factory.measurement("softmax", name, 64, median_us=us, settings=of, block_size=block, num_warps=warps)
        for name, us, of, block, warps in (
            ("cuda", 3.0, digest, 512, 8),
            ("cuda", 4.0, digest, 1024, 4),
            ("cuda", 1.0, "other settings", 1024, 8),
        )
    ]
    factory.write_results(tmp_path / "results", rows)
    fake_ncu(does=REFUSED)
    pins = ("block_size=[512,1024]", "num_warps=[4,8]")
    found = {row["role"]: row["point"] for row in command(*pins)}
    assert found.keys() == {"best", "default", "baseline"}
    assert found["baseline"]["provider"] == "torch"
    for role, block, warps in (("best", 512, 8), ("default", 1024, 4)):
        wanted = {"block_size": block, "num_warps": warps}
        assert found[role]["provider"] == "cuda"
        assert wanted.items() <= found[role]["parameters"].items()


def test_a_counter_that_the_gpu_lacks_costs_only_itself(
    command: Command, fake_ncu: FakeNcu, tmp_path: Path, on_a_gpu: None
) -> None:
    """ncu fails on an unknown counter. The stage then tries the set without extra counters."""
    does = 'case "$*" in *--metrics*) echo "==ERROR== Failed to find metric x"; exit 1 ;; esac\n'
    fake_ncu(does=does + 'touch "$report.ncu-rep"')
    rows = command()
    assert all(row["status"] == "error" for row in rows), "the report holds other keys than today's"
    assert all(row["reason"] == "ncu saw no kernel of it" for row in rows)
    assert sessions(tmp_path) == 2


@pytest.mark.parametrize(
    ("says", "reason", "fix"),
    [
        (
            "==ERROR== ERR_NVGPUCTRPERM - The user does not have permission",
            "may not read",
            "--cap-add=SYS_ADMIN",
        ),
        ("==ERROR== Driver resource was unavailable.", "another tool holds", "dcgmi profile --pause"),
        (
            "==ERROR== Profiling is not supported on device 0.",
            "Profiling is not supported on device 0",
            "see",
        ),
        ("Killed", "Killed", "see what ncu itself says"),
    ],
)
def test_where_ncu_may_not_count_the_rows_say_why(
    command: Command, fake_ncu: FakeNcu, on_a_gpu: None, says: str, reason: str, fix: str
) -> None:
    fake_ncu(does=f"echo '{says}'; exit 1")
    rows = command()
    assert rows
    for row in rows:
        assert row["status"] == "unavailable"
        assert reason in row["reason"]
        assert fix in row["fix"]
        assert row.get("duration_us") is None


def test_without_a_gpu_the_stage_completes(command: Command, capsys: pytest.CaptureFixture[str]) -> None:
    rows = command("device=cpu")
    assert {row["status"] for row in rows} == {"unavailable"}
    assert {row["reason"] for row in rows} == {"this machine has no NVIDIA GPU"}
    printed = capsys.readouterr().out
    assert "counters are unavailable: this machine has no NVIDIA GPU" in printed
    assert ".ncu-rep" not in printed, "there is no report"


def test_a_provider_that_no_gpu_runs_is_one_sentence(
    command: Command, capsys: pytest.CaptureFixture[str]
) -> None:
    command("device=cpu", "provider=cpp", code=2)
    said = capsys.readouterr().err
    assert said.startswith(
        "error: these options leave no point of softmax to count. Left out: cpp (runs on a CPU only). "
        "provider= takes manual, torch,"
    )


def test_a_page_that_ncu_cant_show_ends_no_stage(
    command: Command, fake_ncu: FakeNcu, tmp_path: Path, two_kernels: None
) -> None:
    """Without the page of numbers, rows give the reason. Without the page of rules, they still have the
    numbers."""
    pages = tmp_path / "pages"
    pages.mkdir()
    does = (
        'touch "$report.ncu-rep"; for last in "$@"; do :; done; printf "{" >"$last"'  # killed while it wrote
    )
    fake_ncu(does=does, pages=pages)
    words = {"kernel": "[softmax,layernorm]"}
    rows = command("provider=triton_row", **words)
    assert {row["status"] for row in rows} == {"unavailable"}
    assert all("ncu can't show the report that it has just written" in row["sentence"] for row in rows)
    (pages / "recorded.raw.csv").write_bytes((PAGES / "recorded.raw.csv").read_bytes())
    rows = command("provider=triton_row", **words)
    assert [row["status"] for row in rows] == ["ok", "ok"]
    assert all(row["duration_us"] and "rules" not in row for row in rows)


def test_ncu_writes_numbers_in_no_users_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, on_a_gpu: None
) -> None:
    """In a German locale 1,234 is a little more than one. Names may have any encoding."""
    program = fake(tmp_path)
    says = f"echo \"$LC_ALL\" >>'{tmp_path}/locales'; printf '==PROF== gr\\374n\\n'"
    program.write_text(program.read_text().replace("'--page raw')", f"'--page raw') {says};"))
    monkeypatch.setenv("LC_ALL", "de_DE.UTF-8")
    found = ncu_session.read(Ncu(program, (2025, 3)), tmp_path / "any.ncu-rep").found
    assert (tmp_path / "locales").read_text().split() == ["C"]
    assert found[SOFTMAX][0]["duration_us"] == 137.28


def test_where_no_kernel_was_launched_the_rows_say_what_failed(
    command: Command,
    fake_ncu: FakeNcu,
    on_a_gpu: None,
    known_as: Callable[[Mapping[str, str]], None],
    capsys: pytest.CaptureFixture[str],
) -> None:
    known_as({"triton_row": B})
    failures = json.dumps({B: "RuntimeError: no such launch"})
    does = f"""for last in "$@"; do :; done; echo '{failures}' >"$last"\n"""
    fake_ncu(does=does + "echo '==WARNING== No kernels were profiled.'")
    (row,) = command("provider=triton_row", "num_warps=4")
    assert (row["status"], row["reason"]) == ("error", "RuntimeError: no such launch")
    assert "report" not in row and ".ncu-rep" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("sets", "said"),
    [
        (
            "foo",
            "sets: unknown set 'foo'. Known: basic, detailed, full; a section is written as SpeedOfLight, ",
        ),
        ("fulll", "sets: unknown set 'fulll'. Did you mean 'full'? Known: basic, detailed, full."),
        ("[basic,WarpStateStats]", "sets: 'basic' is a whole set; write it alone, or a list of sections"),
    ],
)
def test_a_slip_in_sets_is_one_sentence(
    command: Command, capsys: pytest.CaptureFixture[str], sets: str, said: str
) -> None:
    assert command("device=cpu", f"sets={sets}", code=2) == []
    assert capsys.readouterr().err.startswith(f"error: {said}")


def others(*options: str) -> int:
    """Run the stage without a kernel. Return its exit code."""
    return exit_code(run_each, "counters", CountersConfig, stage.run, *options)


def test_a_report_from_elsewhere_is_read_by_function(
    fake_ncu: FakeNcu, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A saved page needs no ncu. A report is read by ncu, and both print the same."""
    page = tmp_path / "seen.raw.csv"
    page.write_text((PAGES / "recorded.raw.csv").read_text())
    assert others(f"report={page}") == 0
    from_page = capsys.readouterr().out
    names = [line.split(":")[0] for line in from_page.splitlines() if ": " in line]
    assert [name.partition("<")[0] for name in names[:3]] == [
        "cunn_SoftMaxForwardReg",
        "_layernorm_tile",
        "elementwise",
    ], "the longest first"
    assert "_layernorm_tile: memory limits it: memory throughput 80 %, compute throughput 25 %" in from_page
    assert "elementwise<float, 4, 1, Square>: its grid is too small: 0.06 waves" in from_page

    report = tmp_path / "seen.ncu-rep"
    assert others(f"report={report}") == 2, "it is missing"
    assert "can't be read: No such file or directory." in capsys.readouterr().err
    report.touch()
    fake_ncu()
    assert others(f"report={report}") == 0
    assert capsys.readouterr().out == from_page.replace(str(page), str(report))
    assert not list(tmp_path.glob("**/*.jsonl")), "no rows"


def test_the_first_launches_of_a_program_are_counted(
    fake_ncu: FakeNcu, tmp_path: Path, capsys: pytest.CaptureFixture[str], on_a_gpu: None
) -> None:
    fake_ncu()
    options = ["program=python train.py --epochs=1", "launches=20", f"artifacts={tmp_path}/artifacts"]
    assert others(*options) == 0
    called = (tmp_path / "calls").read_text().splitlines()
    (counting,) = [line for line in called if "--export" in line]
    assert counting.startswith("--target-processes all --launch-count 20 ")
    assert counting.endswith(" python train.py --epochs=1")
    assert "--profile-from-start" not in counting
    (report,) = tmp_path.glob("artifacts/counters/programs/*.ncu-rep")
    assert f"3 functions: {report}" in capsys.readouterr().out

    fake(tmp_path, does="echo '==WARNING== No kernels were profiled.'")
    report.unlink()
    assert others(*options) == 2
    assert "'python train.py --epochs=1' launched no kernel." in capsys.readouterr().err


@pytest.mark.parametrize("options", [[], ["kernel=softmax", "report=x.ncu-rep"]])
def test_a_kernel_a_program_or_a_report_is_asked_for(
    capsys: pytest.CaptureFixture[str], options: list[str]
) -> None:
    assert others(*options) == 2
    assert 'write one of kernel=NAME, program="COMMAND" and report=FILE' in capsys.readouterr().err
