"""Foreign or damaged results cause an error message or the loss of a line, but no traceback, no file
elsewhere and no script."""

import json
import re
import shutil
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import pytest
from hydra import compose, initialize_config_dir
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from kernel_pipeline.errors import UserError
from kernel_pipeline.machine import device
from kernel_pipeline.machine.fingerprint import fingerprint
from kernel_pipeline.records.ceilings import rate
from kernel_pipeline.records.measurement import Measurement
from pipeline import ROOT, report, sweep
from pipeline.command.options import ReportConfig, SweepConfig
from pipeline.command.run import checked
from pipeline.command.words import CONF, CommandLine, for_hydra
from pipeline.keys.identity import Identity
from pipeline.points.plan import Target, plan
from pipeline.reporting import frames
from pipeline.reporting.document import TEMPLATES
from pipeline.reporting.plots import workload_plots
from pipeline.store import evidence, ledger, results
from pipeline.store.evidence import ProfileRow
from pipeline.store.rows_that_count import own_rows
from pipeline.tracking import ledgers
from tests import factory, hostile
from tests.factory import H100, H200
from tests.mlflow_store import log

pytestmark = pytest.mark.xdist_group("hostile")

CONTROL = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\ud800-\udfff]")
CHEAP = settings(
    derandomize=True,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


class Page(HTMLParser):
    """The elements and attributes that a browser finds in a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.found |= {tag, *(name for name, _ in attributes)}


def without_its_script(text: str) -> str:
    """Return a page without one copy of its own script and without that script's data. Fails unless the
    data is JSON, which without "<" cannot close its element."""
    own = (TEMPLATES / "report.js").read_text().rstrip("\n")
    data = re.compile(r'<script type="application/json">([^<]*)</script>')
    for one in data.findall(text):
        json.loads(one)
    return data.sub("", text).replace(own, "", 1).replace("<script>\n\n</script>", "", 1)


def reported(folder: Path) -> Path:
    """Make the report of a results folder, replacing an earlier one, and check its files. Return the
    report's folder."""
    output = folder.parent / "reports"
    shutil.rmtree(output, ignore_errors=True)
    before = {path for path in folder.parent.rglob("*") if path != output}
    report.run(ReportConfig(input=folder, output=output, device="cpu"))
    after = {path for path in folder.parent.rglob("*") if output not in (path, *path.parents)}
    assert after == before, "nothing is written elsewhere"
    for path in output.rglob("*.*"):
        text = path.read_text()
        assert not CONTROL.search(text), path
        if path.suffix == ".svg":
            assert not {element.tag for element in ElementTree.fromstring(text).iter()} & {"script"}
        if path.suffix == ".html":
            found = Page(without_its_script(text)).found
            assert not found & {"script", "img", "iframe", "onload", "onerror"}, path
        if path.suffix == ".md":
            assert "<script" not in text and not re.search(r"(?<!\\)\]\((javascript|http)", text), path
    return output


def said(capsys: pytest.CaptureFixture[str]) -> str:
    """Return the printed text, which must not contain terminal escapes or a traceback."""
    out, err = capsys.readouterr()
    assert not CONTROL.search(out + err)
    assert "Traceback" not in out + err
    return out + err


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a sweep's results, which a test may damage, beside a file that must not be published."""
    (tmp_path / "secret.json").write_text("a secret")
    return factory.write_results(tmp_path / "results", factory.grid(sizes=(256, 1024)))


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory, empty_store: Path) -> Path:
    """Return a real store with published results, which all tests share."""
    made = shutil.copytree(empty_store, tmp_path_factory.mktemp("store"), dirs_exist_ok=True)
    log(factory.write_results(made / "results", factory.grid(sizes=(256,))), f"sqlite:///{made}/mlflow.db")
    return made


def published(folder: Path, store: Path) -> None:
    """Publish the results, with reports and artifacts beside them."""
    reports, artifacts = folder.parent / "reports", folder.parent / "artifacts"
    log(folder, f"sqlite:///{store}/mlflow.db", reports=reports, artifacts=artifacts)


def uploaded(store: Path) -> list[Path]:
    """Return all artifacts of the store."""
    return [path for path in (store / "mlartifacts").rglob("*") if path.is_file()]


@pytest.mark.slow
def test_what_no_measurement_can_hold_is_skipped_and_what_it_can_is_only_shown(
    folder: Path, store: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = results.ledger_path(folder, "softmax", H200)
    whole = path.read_bytes().splitlines()
    hostile.write(path, [*whole, *hostile.KNOWN.values(), *hostile.SHOWN.values()])
    sentences: list[str] = []
    found = results.load(folder, sentences.append)
    assert len(found.measurements) == len(whole) + len(hostile.SHOWN)
    spoilt = range(len(whole) + 1, len(whole) + len(hostile.KNOWN) + 1)
    told = {int(match[1]) for one in sentences if (match := re.search(r"jsonl:(\d+) ", one))}
    # One line is valid, but of another kernel than the file. Its sentence has no line number.
    kinds = dict(zip(hostile.KNOWN, spoilt, strict=True))
    assert {name for name, line in kinds.items() if line not in told} == {"another kernel"}
    assert f"{path} holds 1 row of another kernel or machine; skipped." in sentences
    assert not CONTROL.search("".join(sentences))

    output = reported(folder)
    text = (output / "report.md").read_text()
    assert r"\\x1b\[2J" in text and "&lt;script>" in text and r"\[/x\]" in text
    assert "-5.00" not in (output / "best.csv").read_text()
    published(folder, store)
    assert "softmax on nvidia-h200" in said(capsys)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["a link to a file", "a link to a folder", "a name", "a folder's name"])
def test_a_file_that_leads_elsewhere_is_neither_read_nor_uploaded(
    folder: Path, store: Path, capsys: pytest.CaptureFixture[str], kind: str
) -> None:
    secret = folder.parent / "secret.json"
    if kind == "a link to a file":
        results.config_path(folder, "softmax", H200).unlink()
        results.config_path(folder, "softmax", H200).symlink_to(secret)
        (folder.parent / "reports").mkdir()
        (folder.parent / "reports/softmax.md").symlink_to(secret)
        (folder.parent / "artifacts/profile/softmax" / H200).mkdir(parents=True)
        (folder.parent / "artifacts/profile/softmax" / H200 / "a.txt").symlink_to(secret)
        (folder / "environment/other.json").symlink_to(secret)
    elif kind == "a link to a folder":
        elsewhere = folder.parent / "elsewhere"
        shutil.move(folder / "timings", elsewhere)
        (elsewhere / "softmax" / f"{H200}.yaml").write_text("a secret")
        (folder / "timings").symlink_to(elsewhere)
    elif kind == "a name":
        line = json.loads(results.ledger_path(folder, "softmax", H200).read_bytes().splitlines()[0])
        line["run"] = "../../../secret"
        (folder / "timings/softmax/..\x1b[2J.jsonl").write_bytes(hostile.encoded(line))
    else:
        shutil.move(folder / "timings/softmax", folder / "timings/[x] \x1b[2J")
    sentences: list[str] = []
    results.load(folder, sentences.append)
    assert sentences and all(one.endswith("; skipped.") for one in sentences)
    published(folder, store)
    said(capsys)
    assert not [path for path in uploaded(store) if "secret" in path.read_text(errors="replace")]


def test_a_report_is_not_written_through_a_link(folder: Path) -> None:
    elsewhere, output = folder.parent / "elsewhere", folder.parent / "reports"
    elsewhere.mkdir()
    output.mkdir()
    (output / "plots").symlink_to(elsewhere)
    with pytest.raises(UserError, match=r"plots is a link that leads out of .*; remove it"):
        report.run(ReportConfig(input=folder, output=output, device="cpu"))
    assert not list(elsewhere.iterdir())


def test_a_machine_describes_itself_and_no_formula(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = results.environment_path(folder, H200)
    told = json.loads(path.read_text())
    path.write_text(
        json.dumps(told | {"name": f"$\\frac{{ {hostile.SCRIPT} {hostile.MARKUP} {hostile.ESCAPE}"})
    )
    output = reported(folder)
    assert r"\x1b[2J" in (output / "plots/softmax.svg").read_text()
    said(capsys)
    for wrong in ({"gpu": H100}, {"memory_mib": 10**400}, {"torch": 1}):
        path.write_text(json.dumps(told | wrong))
        with pytest.raises(UserError, match="delete it and run `dvc repro` again"):
            results.load(folder, lambda sentence: None)


def test_evidence_names_no_path_and_belongs_to_its_kernel(folder: Path) -> None:
    row = {
        "key": "1" * 16,
        "kernel": "softmax",
        "point": factory.made_point().to_dict(),
        "status": "ok",
        "sentence": "launches one kernel",
        "environment": "2" * 16,
    }
    wrong = [
        row | {"kernel": "gelu"},
        row | {"kernel": "gelu", "point": None},
        row | {"trace": "../../secret.json"},
        row | {"table": "/etc/passwd"},
        row | {"device_us": float("inf")},
        row | {"host_us": 1e300},
        row | {"status": "ok", "launches": 10**400},
    ]
    path = results.profile_path(folder, "softmax", H200)
    hostile.write(path, [*map(hostile.encoded, [row, *wrong]), *hostile.GARBAGE[1:]])
    sentences: list[str] = []
    found = evidence.load(folder, sentences.append)
    assert found.profiles == {("softmax", H200): [ProfileRow.from_dict(row)]}
    assert f"{path} holds 1 row of another kernel; skipped." in sentences
    reported(folder)


@pytest.mark.slow
def test_every_committed_row_reads_as_it_is() -> None:
    """Every committed row is also written back unchanged, except for colours in compilers' messages."""
    paths = sorted((ROOT / "results/timings").glob("*/*.jsonl"))
    for path in paths:
        before = path.read_bytes().splitlines(keepends=True)
        after = [ledger.encode(row) for row in own_rows(path, pytest.fail)]
        assert len(after) == len(before)
        assert all(rb"\u001b" in line for line in {*before} - {*after})
    evidence.load(ROOT / "results", pytest.fail, local=False)


@settings(CHEAP, max_examples=40)
@given(some=hostile.lines())
def test_any_line_that_reads_can_be_shown_placed_and_written(some: list[bytes], tmp_path: Path) -> None:
    """Prepare rows as report and publish do, but without drawing and without a store."""
    path = results.ledger_path(tmp_path, "softmax", H200)
    hostile.write(path, some)
    try:
        sweeps = ledgers.read(tmp_path)
    except UserError as error:
        assert not CONTROL.search(str(error))
        return
    for one in sweeps:
        for run in (one.parent, *one.children):
            assert not CONTROL.search("".join([run.name, *run.tags.values(), *run.params.values()]))
            assert all(-(2**63) < value.step < 2**63 for value in run.values)
    loaded = results.load(tmp_path, lambda sentence: None)
    rows = frames.frame(loaded.measurements)
    best = frames.against_baseline(frames.best_configurations(rows), {"softmax": "torch"})
    workload_plots("softmax", rows, best)
    ledger.Ledger(path, lambda sentence: None).compact()
    assert len(results.load(tmp_path, lambda sentence: None).measurements) == len(rows)


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> tuple[SweepConfig, Path, Measurement]:
    """Return the configuration of a sweep, its ledger, and the row with which the sweep has nothing to
    measure."""
    output = tmp_path_factory.mktemp("sweep")
    words = ["kernel=square", "preset=smoke", "tracking=none", "provider=torch_square", "device=cpu"]
    words += ["rows=64", "columns=64", "dtype=float32", f"output={output}"]
    with initialize_config_dir(str(CONF), version_base="1.3"):
        composed = compose("sweep", list(for_hydra(words, SweepConfig)))
    (config,) = checked(SweepConfig, composed, CommandLine({}))
    here = device.resolve("cpu")
    (point,) = plan(config.entry, "smoke", Target("cpu"), config.pin, config.provider).points
    parts = Identity(config.entry.loaded, fingerprint(here), config.timing.settings, config.seed).parts(point)
    row = factory.measurement("square", "torch_square", gpu=here.slug, median_us=12.3, run="here")
    work = factory.work_of(point)
    row = row.replace(point=point, parts=parts, key=parts.key)
    assert row.outcome.timing is not None
    row = row.replace(rate=rate(row.outcome.timing.median_us, work, None))
    return config, results.ledger_path(output, "square", here.slug), row


@pytest.mark.slow
@settings(CHEAP, max_examples=3)
@given(data=st.data())
def test_any_ledger_can_be_swept_into(
    measured: tuple[SweepConfig, Path, Measurement], data: st.DataObject, capsys: pytest.CaptureFixture[str]
) -> None:
    config, path, row = measured
    line = ledger.encode(row).strip()
    some = data.draw(hostile.lines(path.stem, "square"))
    wrong = [hostile.in_time(json.loads(line), us) for us in hostile.TIMES.values()]
    hostile.write(path, [line, *some, *hostile.KNOWN.values(), *wrong])
    factory.write_provenance(path, [row])
    sweep.run([config])
    text = " ".join(said(capsys).split())
    assert "1 of 1 are in" in text
    assert "torch_square (baseline) float32 12.3 " in text, "and no time that no call takes"
