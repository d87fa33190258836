from __future__ import annotations

import re
from pathlib import Path

import pytest

import kernels
from pipeline import build as stage
from pipeline.errors import UserError
from pipeline.measure import device, extension, toolchain
from pipeline.measure.extension import CPP_SOURCE, CUDA_SOURCE, ROOT, Place
from pipeline.measure.resources import BuildReport
from tests.pipeline.measure.tiny import make, needs_nvcc


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    monkeypatch.setattr(extension, "_capabilities", list)
    monkeypatch.setattr(kernels, "names", lambda: ["tiny"])
    return make(tmp_path)


@needs_nvcc
def test_the_report_is_written_and_printed(project: Place, capsys: pytest.CaptureFixture[str]) -> None:
    path = project.root / "results/build/tiny/machine.json"
    stage.run("tiny", path, ["80", "90", "9999"], project)
    text = path.read_text()
    report = BuildReport.model_validate_json(text)
    assert report.architectures == ("80", "90")
    assert [(row.function, row.architecture) for row in report.functions] == [
        ("tiny::add<float>", "sm_80"),
        ("tiny::add<float>", "sm_90"),
    ]
    assert report.nvcc == toolchain.find_nvcc().version
    assert report.remarks == (f"sm_9999 was left out: nvcc {report.nvcc} does not know it.",)
    assert not re.search(r'"/|202\d-', text), "no path of this machine and no time"

    printed = capsys.readouterr().out
    assert re.search(r"add<float> +sm_90 +\d+ +0 +0 +0", printed)
    assert report.remarks[0] in printed
    assert printed.rstrip().endswith(f"Report in {path}, libraries and compiler logs in build/tiny.")

    stage.run("tiny", path, ["80", "90", "9999"], project)
    assert path.read_text() == text, "also where there was nothing to compile"


def test_without_a_gpu_cuda_is_left_out_where_there_is_no_nvcc(
    project: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_nvcc() -> toolchain.Nvcc:
        raise UserError(toolchain.NO_NVCC)

    monkeypatch.setattr(stage, "find_nvcc", no_nvcc)
    monkeypatch.setattr(extension, "find_nvcc", no_nvcc)
    monkeypatch.setattr(device, "gpus", list)
    report = stage.build_kernel("tiny", ["80"], project)
    assert report.remarks == (f"kernels/tiny/cuda.cu was left out: {toolchain.NO_NVCC}",)
    assert (report.nvcc, report.architectures, report.functions) == (None, (), ())
    assert project.target("tiny", CPP_SOURCE, ".so").is_file()

    monkeypatch.setattr(device, "gpus", lambda: [device.Device(kind="cuda", name="GPU")])
    with pytest.raises(UserError, match="no CUDA compiler was found"):
        stage.build_kernel("tiny", ["80"], project)


def test_a_kernel_without_sources_needs_no_compiler(project: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    for source in (CPP_SOURCE, CUDA_SOURCE):
        (project.root / project.source("tiny", source)).unlink()
    monkeypatch.setenv("PATH", "")
    report = stage.build_kernel("tiny", ["80"], project)
    assert (report.cxx, report.nvcc, report.functions) == (None, None, ())
    assert project.folder("tiny").is_dir(), "DVC asks for the folder"


def test_an_unknown_kernel(project: Place) -> None:
    with pytest.raises(UserError, match=r"unknown kernel 'tny'\. Did you mean 'tiny'\?"):
        stage.run("tny", project.root / "report.json", ["80"], project)


def test_committed_reports_are_readable() -> None:
    for path in (ROOT / "results/build").glob("*/*.json"):
        report = BuildReport.model_validate_json(path.read_bytes())
        assert report.kernel == path.parent.name
        assert report.functions or report.remarks
