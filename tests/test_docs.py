"""What the documentation tells to type works, and prints what it shows."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from pipeline.config import ROOT


def test_the_example_of_debugging_a_kernel(tmp_path: Path) -> None:
    """The script, the command and the output of the last section of docs/why.md."""
    section = (ROOT / "docs/why.md").read_text().split("## Debugging a Triton kernel")[1]
    script, command, output = re.findall(r"```(?:python|sh)?\n(.*?)```", section, re.DOTALL)
    (tmp_path / "look.py").write_text(script)
    (tmp_path / "kernels").symlink_to(ROOT / "kernels")
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run(
        ["bash", "-c", command],
        cwd=tmp_path,
        env=environment | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert output.strip() in done.stdout, done.stdout + done.stderr
    assert "0.8438" in done.stdout, "and the kernel goes on to its end"
