"""docs/lectures/: the commands that need a GPU print what their pages show."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

import pytest

from pipeline import ROOT
from tests.lectures import Command, commands
from tests.processes import completed

pytestmark = pytest.mark.gpu


@pytest.mark.long
@pytest.mark.parametrize("command", [one for one in commands() if one.needs_a_gpu], ids=str)
def test_a_command_prints_what_its_page_shows(tmp_path: Path, command: Command) -> None:
    """Each has a lock of its own on the GPU: no time is looked at, and they would wait for each other. Those
    that run ncu share one, because ncu runs once at a time."""
    (tmp_path / "docs").symlink_to(ROOT / "docs")
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    variables = os.environ | dict(command.variables) | {"PYTHONPATH": path}
    with tempfile.TemporaryDirectory() as temporary:
        if "pipeline.counters" not in command.words:
            variables["TMPDIR"] = temporary
        done = completed([sys.executable, *command.words], cwd=tmp_path, env=variables)
    assert done.returncode == 0 and command.is_shown_by(done.stdout), done.stdout + done.stderr


def test_inductor_generates_a_flat_triton_kernel(tmp_path: Path) -> None:
    done = completed(
        [sys.executable, str(ROOT / "docs" / "lectures" / "inductor.py")],
        cwd=tmp_path,
        env=os.environ | {"TORCH_LOGS": "output_code", "TORCHINDUCTOR_CACHE_DIR": str(tmp_path)},
    )
    page = (ROOT / "docs" / "lectures" / "08_inductor.md").read_text()
    for line in ("def triton_poi_fused_mul_0(in_ptr0, out_ptr0, xnumel", "xnumel = 16777216", "tmp0 * tmp0"):
        assert line in page and line in done.stderr, done.stderr
