"""The section "Where we lose" shows each faster provider, whatever the source of its time."""

from datetime import timedelta
from pathlib import Path

import pytest
from rich.console import Console

from kernel_pipeline.errors import UserError
from kernel_pipeline.records.measurement import Measurement
from pipeline import report
from pipeline.command.options import ReportConfig
from pipeline.docs import Figures
from pipeline.points import catalog
from pipeline.reporting import lines, losses, summary
from pipeline.reporting.others import Environments, ProviderTime
from pipeline.store import finals, provenance
from pipeline.store.finals import Final
from pipeline.tracking import notes
from tests.factory import H200, MEASURED_AT, environment, final, measurement, write_finals, write_results
from tests.pages import cells, part, section

KERNEL = "attention_backward"
OURS = "triton_flash"
EARLIER = "20260801T120000Z-aaaaaa"
NEWEST = "20260901T120000Z-abcdef"
HELD_BACK = "the GPU was held back while it was timed, twice: sw_power_cap"


def row(provider: str, us: float, **named: object) -> Measurement:
    size = {"batch": 4, "heads": 16, "head_dim": 128}
    return measurement(KERNEL, provider, 4096, "bfloat16", median_us=us, **size, **named)  # type: ignore[arg-type]


def held(run: str, **times: float) -> list[Final]:
    """Return finals of a run, with ours first."""
    ours = row(OURS, 100.0)
    beside = [
        final(row(name, us), us, (ours, 100.0, "faster" if us < 99 else "slower"), run)
        for name, us in times.items()
    ]
    return [final(ours, 100.0, run=run), *beside]


def alone(rows: list[Final], provider: str) -> list[Final]:
    """Return the finals of a provider in a run without ours."""
    return [one.replace(against=None) for one in rows if one.point.provider == provider]


BASE = [row(OURS, 100.0), row("sdpa_flash", 150.0)]

PLANTED: dict[str, tuple[list[Measurement], list[list[Final]], str]] = {
    "another backend of torch": ([], [held(NEWEST, sdpa_flash=150.0, sdpa_cudnn=74.0)], "0.74"),
    "another backend, by the sweep": ([row("sdpa_cudnn", 74.0)], [], "0.74"),
    "a packaged peer": ([], [held(NEWEST, sdpa_flash=150.0, flash_attn_4=74.0)], "0.74"),
    "a packaged peer, by the sweep": ([row("flash_attn_4", 74.0)], [], "0.74"),
    "a sweep, of which no finals were held": (
        [row("sdpa_cudnn", 74.0)],
        [held(NEWEST, sdpa_flash=150.0)],
        "0.74 (another run)",
    ),
    "another run of finals": (
        [],
        [held(EARLIER, sdpa_flash=150.0, flash_attn_4=74.0), held(NEWEST, sdpa_flash=150.0)],
        "0.74 (another run)",
    ),
    "a newer run of finals, without ours": (
        [],
        [held(EARLIER, sdpa_flash=150.0), alone(held(NEWEST, flash_attn_4=74.0), "flash_attn_4")],
        "0.74 (another run)",
    ),
    "a throttled time": ([row("flash_attn_4", 74.0, throttle="sw_power_cap")], [], "0.74!"),
}


@pytest.mark.parametrize("where", PLANTED)
def test_a_faster_provider_is_found_wherever_it_comes_from(where: str, tmp_path: Path) -> None:
    rows, runs, ratio = PLANTED[where]
    folder, output = tmp_path / "results", tmp_path / "reports"
    write_results(folder, [*BASE, *rows])
    for some in runs:
        write_finals(folder, some)
    report.run(ReportConfig(input=folder, output=output, device="cpu"))
    planted = "sdpa_cudnn" if "sdpa_cudnn" in f"{rows} {runs}" else "flash_attn_4"
    time = "<= 74.0" if "throttled" in where else "74.0"
    text, html = ((output / f"report.{kind}").read_text() for kind in ("md", "html"))
    (line,) = [one for one in section(text, "Where we lose").splitlines() if one.startswith(f"| {KERNEL} |")]
    found = cells(line)
    assert found[2:6] + found[7:10] == [
        *("bfloat16 4096", ratio, planted, time, "100", ""),
        "finals" if runs else "sweeps",
    ]
    assert "seven products where five are counted" in found[10], "the reason of the kernel's page"
    assert ("! Not to be trusted at" in text and HELD_BACK in text) == ("throttled" in where)
    assert part(html, "where-we-lose").tables[0][1] == found, "the HTML page says the same"
    assert f"at 1 of 1 problems: bfloat16 4096 ({planted})." in text
    if runs:
        table = Figures(folder).text("finals problems=largest")
        assert f"| `{planted}` {ratio} |" in table, "README has it as the best peer"


def test_losses_come_worst_first_and_one_that_is_within_1_percent_is_none(tmp_path: Path) -> None:
    rows = []
    for columns, us in ((256, 9.95), (1024, 9.0), (4096, 5.0), (16384, 8.0)):
        rows += [
            measurement("softmax", "cuda", columns, median_us=10.0),
            measurement("softmax", "torch", columns, median_us=20.0),
            measurement("softmax", "quack", columns, median_us=us),
        ]
    rows += [measurement("softmax", "triton_online", 1024, median_us=11.0)]
    write_results(tmp_path / "results", rows)
    report.run(ReportConfig(input=tmp_path / "results", output=tmp_path / "reports", device="cpu"))
    text = section((tmp_path / "reports/report.md").read_text(), "Where we lose")
    found = [cells(line) for line in text.splitlines() if line.startswith("| softmax | ")]
    assert [(cells[2], cells[3]) for cells in found] == [
        ("float32 4096", "0.50"),
        ("float32 16384", "0.80"),
        ("float32 1024", "0.90"),
    ]
    assert found[0][10] == "Not measured there of ours: triton_online; no reason is given"
    assert found[2][10] == "no reason is given"


def test_where_nobody_is_faster_the_page_says_so(tmp_path: Path) -> None:
    write_results(tmp_path / "results", BASE)
    report.run(ReportConfig(input=tmp_path / "results", output=tmp_path / "reports", device="cpu"))
    text = (tmp_path / "reports/report.md").read_text()
    assert "## Where we lose\n\nNo other provider is faster by more than 1 %.\n" in text


def test_a_time_of_another_environment_is_none(tmp_path: Path) -> None:
    """The provenance of the finals' run names another driver."""
    folder = tmp_path / "results"
    write_results(folder, BASE)
    before = environment(H200).replace(driver="570.0")
    rows = held(EARLIER, flash_attn_4=74.0, sdpa_cudnn=70.0)
    changed = [
        one.replace(parts=(parts := one.parts.replace(environment="8" * 16))).replace(key=parts.key)
        for one in rows
    ]
    known = provenance.run_of(changed[0].origin, changed[0].parts, KERNEL)
    path = finals.path(folder, KERNEL, H200)
    finals.append(path, changed, known.replace(environment=before))
    write_finals(folder, held(NEWEST, sdpa_flash=150.0))
    report.run(ReportConfig(input=folder, output=tmp_path / "reports", device="cpu"))
    text = (tmp_path / "reports/report.md").read_text()
    assert "No other provider is faster by more than 1 %." in text and "flash_attn_4" not in text


def test_environments_are_equal_as_far_as_the_others_provider_depends_on_them() -> None:
    other_triton = environment(H200).replace(triton="3.7.0")
    other_driver = environment(H200).replace(driver="570.0")
    runs = {"ours": environment(H200), "triton": other_triton, "driver": other_driver}
    environments = Environments(runs, {})

    def time(provider: str, run: str, digest: str) -> ProviderTime:
        return ProviderTime(provider, provider, 1.0, run, digest, "source", MEASURED_AT)

    ours = time(OURS, "ours", "1")
    assert environments.equal(KERNEL, H200, ours, time("sdpa_cudnn", "triton", "2")), "it has no Triton"
    assert not environments.equal(KERNEL, H200, ours, time("flash_attn_4", "triton", "3"))
    assert not environments.equal(KERNEL, H200, ours, time("sdpa_cudnn", "driver", "4"))
    assert environments.equal(KERNEL, H200, ours, time("flash_attn_4", "unknown", "5"))
    assert environments.equal(KERNEL, H200, ours, time("sdpa_cudnn", "unknown", "")), "nothing is known of it"
    assert not environments.equal(KERNEL, H200, ours, time("sdpa_cudnn", "unknown", "6"))
    old = time(OURS, "unknown", "")
    assert environments.equal(KERNEL, H200, old, time("sdpa_cudnn", "driver", "4")), (
        "nothing is known of ours"
    )


def test_the_newest_time_of_another_counts(tmp_path: Path) -> None:
    """The other provider's finals were faster, but are older than its sweep."""
    folder = tmp_path / "results"
    before = [
        one.replace(origin=one.origin.replace(measured_at=MEASURED_AT - timedelta(days=9)))
        for one in held(EARLIER, flash_attn_4=50.0)
    ]
    write_results(folder, [*BASE, row("flash_attn_4", 74.0)])
    write_finals(folder, before)
    write_finals(folder, held(NEWEST, sdpa_flash=150.0))
    report.run(ReportConfig(input=folder, output=tmp_path / "reports", device="cpu"))
    assert "| 0.74 (another run) | flash_attn_4 | 74.0 |" in (tmp_path / "reports/report.md").read_text()


def test_a_ratio_over_a_time_that_is_not_to_be_trusted_has_the_mark_and_the_reason(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [
        measurement("softmax", "cuda", 1024, median_us=10.0),
        measurement("softmax", "torch", 1024, median_us=420.0, valid=False),
        measurement("softmax", "cuda", 4096, median_us=100.0, throttle="sw_power_cap"),
        measurement("softmax", "torch", 4096, median_us=200.0),
    ]
    folder, output = write_results(tmp_path / "results", rows), tmp_path / "reports"
    report.run(ReportConfig(input=folder, output=output, device="cpu"))
    drift = "the clock moved by 8 % while it was timed"
    text = (output / "report.md").read_text()
    assert "| 42.0! |" in text and "| <= 100† |" in text and "| 2.00! |" in text
    assert f"! Not to be trusted on NVIDIA H200: {drift}" in text
    assert f"! Not to be trusted at softmax float32 on NVIDIA H200: {HELD_BACK}." in text, "the overview's"
    assert "2.00! x torch" in text
    html = (output / "report.html").read_text()
    assert "42.0! x torch" in html and f"not to be trusted: {drift}" in html, "of a chart's mark"
    summary.show(Console(width=150), output, H200)
    said = capsys.readouterr().out
    assert "2.00! x torch" in said and "<= 100" in said and HELD_BACK in " ".join(said.split())
    table = Figures(folder).text(
        "providers kernel=softmax workload=columns columns=[1024,4096] dtype=float32"
    )
    assert "**<= 100**" in table and "| 420! |" in table and f": {drift}." in table


def test_one_round_is_said_to_be_one(tmp_path: Path) -> None:
    rows = [
        one.replace(
            rounds_us=one.rounds_us[:1],
            against=one.against and one.against.replace(verdict="undecided", high=None),
        )
        for one in held(NEWEST, sdpa_flash=170.0, sdpa_cudnn=74.0)
    ]
    write_results(tmp_path / "results", BASE)
    write_finals(tmp_path / "results", rows)
    report.run(ReportConfig(input=tmp_path / "results", output=tmp_path / "reports", device="cpu"))
    text = (tmp_path / "reports/report.md").read_text()
    assert "| 0.74 (one round) | sdpa_cudnn |" in text and "| 1.70 (one round) | 0.74 (one round) |" in text
    for words in ("finals", f"finals kernel={KERNEL} workload=shapes"):
        table = Figures(tmp_path / "results").text(words)
        assert "1.70 (one round)" in table and "undecided" not in table


def test_every_page_of_a_kernel_gives_reasons_that_can_be_read(tmp_path: Path) -> None:
    given = {kernel: losses.reasons(kernel, losses.PAGES) for kernel in catalog.names()}
    assert given[KERNEL] and given["matmul_int4"]
    of_norms = [given[kernel] for kernel in ("layernorm_backward", "rmsnorm_backward")]
    assert all(of_norms) and of_norms[0] != of_norms[1], "one page has a table for each"
    page = tmp_path / "softmax.md"
    head = "# softmax\n\n## Where it loses\n\n| others | problems | reason |\n|---|---|---|\n"
    for line in (
        "| `quick` | all | so |",
        "| `quack` | colums=4 | so |",
        "| `quack` | all |",
        "| all | all | so |",
    ):
        page.write_text(f"{head}{line}\n")
        losses.reasons.cache_clear()
        with pytest.raises(UserError, match=r"softmax\.md: write \| `PROVIDER`"):
            losses.reasons("softmax", tmp_path)
    page.write_text(
        f"{head}| `quack` | columns=[256,512] gpu={H200} | rows are `short` |\n\n## Next\n| x |\n"
    )
    losses.reasons.cache_clear()
    (one,) = losses.reasons("softmax", tmp_path)
    assert one.text == "rows are short" and one.where["columns"] == {"256", "512"}


def test_the_terminal_says_of_one_round_that_it_is_one() -> None:
    ours, other = held(NEWEST, sdpa_flash=170.0)
    console = Console(width=200, record=True)
    for rounds, said in ((1, "sdpa_flash 1.70 one round"), (2, "sdpa_flash 1.70 slower")):
        row = other.replace(rounds_us=other.rounds_us[:rounds])
        console.print(summary.finals_table([[ours, row]], "finals").rich())
        assert said in console.export_text()


def test_a_description_in_mlflow_marks_a_ratio_and_says_why() -> None:
    rows = [row(OURS, 100.0), row("sdpa_flash", 150.0, throttle="sw_power_cap")]
    text = notes.of_results(lines.place(rows), {})
    assert "| <= 150 |" in text and "| 1.50! |" in text
    assert f"! 2 rows not to be trusted: {HELD_BACK}." in text
