"""The parts that counters, profiles and generated code add to the report's page and to the MLflow store."""

from pathlib import Path
from typing import Any

import pytest

from kernel_pipeline import json_lines
from kernel_pipeline.records.measurement import Measurement
from pipeline import report
from pipeline.command.options import ReportConfig
from pipeline.store import results
from pipeline.store.evidence import CodeRow, CounterRow, Mix, NcuRule, ProfileRow, joined
from tests.factory import CPU, H200, grid, write_results
from tests.mlflow_store import log, run_ids, shown

ROWS = grid(gpus=(H200, CPU), sizes=(256, 4096), block_sizes=(1024,), num_warps=(4, 8))


def row_of(provider: str, size: int, num_warps: int | None = None, gpu: str = H200) -> Measurement:
    (found,) = [
        row
        for row in ROWS
        if (row.point.provider, row.point.problem["columns"], row.point.parameters.get("num_warps"))
        == (provider, size, num_warps)
        and row.origin.gpu == gpu
    ]
    return found


def counted(row: Measurement, role: str, **numbers: Any) -> CounterRow:
    common = {**joined(row.point, row.key), "role": role, "environment": row.parts.environment}
    return CounterRow(status="ok", function="f", **common, **numbers)


def compiled(row: Measurement, registers: int, *, native: bool = True) -> CodeRow:
    mix = dict.fromkeys(Mix.__struct_fields__, 0) | {
        "instructions": 278,
        "global_loads_128": 2,
        "spill_load_bytes": 12,
    }
    return CodeRow(
        **joined(row.point, row.key),
        language="triton",
        architecture="90",
        native=native,
        function="_softmax_online",
        registers=registers,
        shared=32,
        stack=0,
        threads=256,
        launch_known=True,
        occupancy=0.75,
        mix=Mix(**mix),
        compiler="triton 3.6.0",
        environment=row.parts.environment,
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return timings of two machines: one with counters, code and profiles, the other with the reasons why
    it has none."""
    made = write_results(tmp_path / "results", ROWS)
    best, base = row_of("triton_online", 4096, 8), row_of("torch", 4096)
    counters = [
        counted(base, "baseline", duration_us=5.0, memory_throughput_pct=33.0, sentence="too short"),
        counted(
            base,
            "baseline",
            duration_us=50.0,
            memory_throughput_pct=61.5,
            compute_throughput_pct=12.0,
            registers=40.0,
            theoretical_occupancy_pct=62.5,
            limited_by="registers",
            estimated_speedup_pct=42.52,
            runtime_improvement_us=21.26,
            rules=(
                NcuRule(name="Narrow", kind="OPT", text="one place", speedup_pct=90.0, scope="local"),
                NcuRule(
                    name="Held",
                    kind="OPT",
                    text="Too few. See (https://x).",
                    speedup_pct=42.52,
                    scope="global",
                ),
            ),
            sentence="memory limits it: memory throughput 62 %, compute throughput 12 %",
        ),
        counted(
            best,
            "best",
            duration_us=34.0,
            memory_throughput_pct=91.2,
            compute_throughput_pct=31.4,
            dram_read_bytes=1e8,
            dram_write_bytes=1e8,
            sentence="memory limits it: memory throughput 91 %, compute throughput 31 %",
        ),
    ]
    json_lines.write(results.counters_path(made, "softmax", H200), counters)
    missing = CounterRow(
        **joined(row_of("torch", 256, gpu=CPU).point, "0" * 16),
        role="baseline",
        status="unavailable",
        reason="no GPU",
        sentence="unavailable: this machine has no NVIDIA GPU",
        environment="e",
    )
    json_lines.write(results.counters_path(made, "softmax", CPU), [missing])
    code = [
        compiled(best, 25),
        compiled(row_of("triton_online", 256, 8), 22),
        compiled(best, 99, native=False),
    ]
    json_lines.write(results.codegen_path(made, "softmax", H200), code)
    profile = ProfileRow(
        **joined(base.point, base.key),
        status="ok",
        launches=1.0,
        device_us=49.5,
        host_us=12.0,
        sentence="a call (aten::softmax) launches 1 device kernel: cunn_SoftMaxForward; 49.5 us",
        environment="e",
    )
    json_lines.write(results.profile_path(made, "softmax", H200), [profile])
    return made


def test_the_report_leaves_out_what_is_about_an_older_source(folder: Path, tmp_path: Path) -> None:
    best, base = row_of("triton_online", 4096, 8), row_of("torch", 4096)
    path = results.counters_path(folder, "softmax", H200)
    path.write_text(path.read_text().replace(best.key, "0123456789abcdef"))
    path = results.profile_path(folder, "softmax", H200)
    path.write_text(path.read_text().replace(base.key, "fedcba9876543210"))
    output = tmp_path / "reports"
    report.run(ReportConfig(input=folder, output=output, device="cpu"))
    markdown = (output / "report.md").read_text()
    assert [line.split("|")[4].strip() for line in markdown.splitlines() if "limits it: memory" in line] == [
        "baseline"
    ]
    assert "cunn_SoftMaxForward" not in markdown
    for text in (markdown, (output / "report.html").read_text()):
        assert "with other options:" in text
        assert "triton_online 1024x8w, 4096 float32; torch, 4096 float32." in text


def test_the_report_says_why(folder: Path, tmp_path: Path) -> None:
    output = tmp_path / "reports"
    report.run(ReportConfig(input=folder, output=output, device="cpu"))
    markdown = (output / "report.md").read_text()
    lines = [line for line in markdown.splitlines() if "limits it: memory" in line]
    assert len(lines) == 2, "of two kernels of a call the longer one"
    best, base = (next(line for line in lines if role in line) for role in ("| best |", "| baseline |"))
    assert best.startswith("| 4096 float32 | triton_online 1024x8w | memory limits it")
    assert "| 91.2 | 31.4 |" in best and "| 12 |" in best, "the bytes that its code spills"
    assert "| 61.5 | 12.0 |" in base
    assert "| 62.5 (registers) | 40 |" in base and "| 42.5 (Held) |" in base
    assert "- Held, up to 42.5 % (torch, 4096 float32): Too few. See" in markdown
    assert "Narrow" not in markdown, "what a local rule promises is not the kernel's"
    assert "Counters unavailable: this machine has no NVIDIA GPU." in markdown
    assert "launches 1 device kernel: cunn_SoftMaxForward" in markdown
    page = (output / "report.html").read_text()
    assert "memory throughput 91 %" in page and "What a call does" in page
    assert "62.5 (registers)" in page and "42.5 (Held)" in page and "Too few." in page
    first = {path: path.read_bytes() for path in output.rglob("*") if path.is_file()}
    report.run(ReportConfig(input=folder, output=output, device="cpu"))
    assert first == {path: path.read_bytes() for path in output.rglob("*") if path.is_file()}


def test_counters_and_resources_are_metrics_of_the_configuration(
    folder: Path, tmp_path: Path, database: Path
) -> None:
    artifacts = tmp_path / "artifacts"
    for name in (
        "profile/softmax/nvidia-h200/torch.txt",
        "profile/softmax/nvidia-h200/torch.json.gz",
        "codegen/softmax/nvidia-h200/triton_online.txt",
        "codegen/softmax/nvidia-h200/triton_online.ttgir",
        "counters/softmax/nvidia-h200.ncu-rep",
        "profile/softmax/cpu-amd-epyc/torch.txt",
    ):
        (artifacts / name).parent.mkdir(parents=True, exist_ok=True)
        (artifacts / name).write_text(name)
    log(folder, f"sqlite:///{database}", artifacts=artifacts)
    runs = shown(database)

    def metrics(run: str) -> dict[tuple[str, int], float]:
        return {(key, step): value for key, step, value, *_ in runs[run]["metrics"]}

    own = metrics(f"triton_online float32 1024x8w @ {H200}")
    assert own["memory_throughput_pct", 4096] == 91.2
    assert (own["registers", 256], own["registers", 4096]) == (22.0, 25.0), "of the code that this GPU runs"
    assert own["spilled_bytes", 4096] == 12.0
    base = metrics(f"torch float32 @ {H200}")
    assert base["memory_throughput_pct", 4096] == 61.5, "of the kernel that takes longest"
    assert base["device_launches", 4096] == 1.0
    assert (base["counted_us", 4096], own["counted_us", 4096]) == (50.0, 34.0)
    assert (base["registers", 4096], base["occupancy", 4096]) == (40.0, 0.625), (
        "where no code was taken apart"
    )
    assert (base["theoretical_occupancy_pct", 4096], own["occupancy", 4096]) == (62.5, 0.75)
    assert base["runtime_improvement_us", 4096] == 21.26
    assert (own["dram_read_bytes", 4096], own["dram_write_bytes", 4096]) == (1e8, 1e8)
    assert not any(name == "memory_throughput_pct" for name, _ in metrics(f"torch float32 @ {CPU}"))
    parent = run_ids(database)[f"softmax @ {H200}"]
    kept = database.parent / "mlartifacts" / "softmax" / parent / "artifacts"
    names = {str(path.relative_to(kept)) for path in kept.rglob("*") if path.is_file()}
    assert {name for name in names if name.startswith("artifacts/")} == {
        "artifacts/profile/torch.txt",
        "artifacts/profile/torch.json.gz",
        "artifacts/codegen/triton_online.txt",
        "artifacts/counters/nvidia-h200.ncu-rep",
    }
    assert f"results/counters/softmax/{H200}.jsonl" in names
    before = run_ids(database)
    log(folder, f"sqlite:///{database}", artifacts=artifacts)
    assert run_ids(database) == before, "publishing again changes nothing"
