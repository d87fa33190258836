import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from kernel_pipeline import loading
from kernel_pipeline.errors import UserError
from kernel_pipeline.machine import compilers, device
from kernel_pipeline.machine import fingerprint as environment
from kernel_pipeline.toolchain import extension, resources
from kernel_pipeline.toolchain.extension import Place
from kernel_pipeline.toolchain.resources import BuildReport
from pipeline import ROOT, build
from pipeline.command.options import BuildConfig
from pipeline.command.run import run_each
from tests.commands import exit_code
from tests.kernel_pipeline.toolchain.tiny import CPP, CUDA, make, needs_nvcc
from tests.planted import two_of_each
from tests.planted.tree import Tree
from tests.project import wait_until


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    monkeypatch.setattr(extension, "_capabilities", list)
    return make(tmp_path)


def test_what_came_of_it_is_the_same_where_there_is_nothing_to_compile(project: Place) -> None:
    first = build.build_kernel(project, [CPP], ["80"])
    assert first.cxx == environment.find_cxx().version
    assert (first.nvcc, first.architectures, first.functions) == (None, (), ())
    assert build.build_kernel(project, [CPP], ["80"]) == first


def test_a_report_of_these_sources_needs_no_build(project: Place) -> None:
    report = build.build_kernel(project, [CPP], None)
    made = report.made_of[CPP]
    assert set(made.inputs) == {"kernels/include/value.h", "kernels/tiny/cpp.cpp"}
    assert resources.is_of_today(project, [CPP], report, None)
    assert BuildReport.from_json(report.to_json().decode()) == report
    # The report says nothing about other sources or another compiler.
    assert not resources.is_of_today(project, [CPP, "more.cpp"], report, None)
    elsewhere = made.replace(recipe=made.recipe.replace(compilers=("other",)))
    assert not resources.is_of_today(project, [CPP], report.replace(made_of={CPP: elsewhere}), None)
    assert not resources.is_of_today(project, [CPP], report.replace(torch="0.1"), None)
    assert not resources.is_of_today(project, [CPP], report.replace(remarks=("no nvcc",)), None)
    assert not resources.is_of_today(project, [CPP], report.replace(made_of={}), None), "an older one"
    header = project.root / "kernels/include/value.h"
    header.write_text(header.read_text() + "// other\n")
    assert not resources.is_of_today(project, [CPP], report, None)


@needs_nvcc
def test_an_architecture_that_this_nvcc_does_not_know_is_left_out(project: Place) -> None:
    report = build.build_kernel(project, [CPP, CUDA], ["80", "90", "9999"])
    assert report.architectures == ("80", "90")
    assert [(row.function, row.architecture) for row in report.functions] == [
        ("tiny::add<float>", "sm_80"),
        ("tiny::add<float>", "sm_90"),
    ]
    assert report.nvcc == environment.find_nvcc().version
    assert report.remarks == (f"sm_9999 was left out: nvcc {report.nvcc} does not know it.",)


def test_without_a_gpu_cuda_is_left_out_where_there_is_no_nvcc(
    project: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_nvcc() -> environment.Nvcc:
        raise UserError(compilers.NO_NVCC)

    monkeypatch.setattr(build, "find_nvcc", no_nvcc)
    monkeypatch.setattr(extension, "find_nvcc", no_nvcc)
    monkeypatch.setattr(device, "gpus", list)
    report = build.build_kernel(project, [CPP, CUDA], ["80"])
    assert report.remarks == (f"kernels/tiny/cuda.cu was left out: {compilers.NO_NVCC}",)
    assert (report.nvcc, report.architectures, report.functions) == (None, (), ())
    assert project.target(CPP, ".so").is_file()

    monkeypatch.setattr(device, "gpus", lambda: [device.Device(kind="cuda", name="GPU")])
    with pytest.raises(UserError, match="no CUDA compiler was found"):
        build.build_kernel(project, [CPP, CUDA], ["80"])


def test_a_kernel_without_sources_needs_no_compiler(project: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    report = build.build_kernel(project, [], ["80"])
    assert (report.cxx, report.nvcc, report.functions) == (None, None, ())
    assert project.output.is_dir(), "DVC asks for the folder"


def command(*words: str) -> int:
    """Run ``python -m pipeline.build`` in this process. Return its exit code."""
    return exit_code(run_each, "build", BuildConfig, build.run, *words)


@pytest.mark.slow
@needs_nvcc
def test_every_source_of_a_kernel_outside_of_the_repository_is_in_the_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", [])
    monkeypatch.setattr(extension, "_capabilities", list)
    monkeypatch.setattr(extension, "WORK", tmp_path)  # the parent folder of all libraries
    folder = two_of_each.write(tmp_path)
    words = (f"kernel={folder}", "device=cpu", f"output={tmp_path}/results", "architectures=[80,90]")
    assert command(*words) == 0
    (path,) = (tmp_path / "results/build/two_of_each").glob("*.json")
    text = path.read_text()
    report = BuildReport.from_json(text)
    assert (report.kernel, report.architectures, report.remarks) == ("two_of_each", ("80", "90"), ())
    assert [(row.source, row.function, row.architecture) for row in report.functions] == [
        ("two_of_each/odd-name.cu", "two_of_each::by_block<float>", "sm_80"),
        ("two_of_each/odd-name.cu", "two_of_each::by_block<float>", "sm_90"),
        ("two_of_each/halves.cu", "two_of_each::by_grid<float>", "sm_80"),
        ("two_of_each/halves.cu", "two_of_each::by_grid<float>", "sm_90"),
    ]
    assert not re.search(r'"/|202\d-', text), "no path of this machine and no time"
    printed = capsys.readouterr().out
    assert re.search(r"odd-name\.cu +by_block<float> +sm_90 +\d+ +0 +0 +0", printed)
    assert f"Report in {path}, libraries and compiler logs in " in printed

    assert command(*words) == 0
    assert path.read_text() == text, "also where there was nothing to compile"


COMPILER = """#!/bin/sh
case "$*" in *--version*) exec c++ "$@";; esac
touch "$TMPDIR/started.$$"
sleep 600
"""


def test_ctrl_c_ends_the_builds_of_several_kernels_at_once(tmp_path: Path) -> None:
    tree = Tree(tmp_path)
    compiler = tmp_path / "compiler"
    compiler.write_text(COMPILER)
    compiler.chmod(0o755)
    process = subprocess.Popen(
        [sys.executable, "-m", "pipeline.build", "kernel=gelu,softmax,square", "device=cpu"],
        cwd=tree.root,
        env=os.environ | {"TMPDIR": str(tree.temporary), "CXX": str(compiler)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    wait_until(lambda: process.poll() is not None or list(tree.temporary.glob("started.*")))
    below = psutil.Process(process.pid).children(recursive=True)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (130, ""), out + err
    _, alive = psutil.wait_procs(below, timeout=60)
    assert alive == []
    started = [int(path.name.partition(".")[2]) for path in tree.temporary.glob("started.*")]
    assert not [pid for pid in started if psutil.pid_exists(pid)], "nor one that came after the signal"
    assert not list((tree.root / "build").rglob("*.so"))


def test_committed_reports_are_readable() -> None:
    for path in (ROOT / "results/build").glob("*/*.json"):
        report = BuildReport.from_json(path.read_bytes())
        assert report.kernel == path.parent.name
        assert report.kernel in loading.names()
        # A kernel's first source may be newer than its report.
        assert not report.made_of or report.functions or report.remarks
