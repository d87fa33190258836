"""docs/own_kernel.md, followed word for word."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from tests.planted.tree import ROOT, cpu_tree

BLOCK = re.compile(r"```(sh|python|diff)\n(.*?)```", re.DOTALL)


def test_the_walk_through_adds_a_kernel(tmp_path: Path) -> None:
    tree = cpu_tree(tmp_path)

    def run(line: str) -> None:
        done = subprocess.run(
            [sys.executable, *line.split()[1:]],
            cwd=tree.root,
            env=os.environ | {"TMPDIR": str(tree.temporary)},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr

    text = (ROOT / "docs" / "own_kernel.md").read_text()
    commands = []
    for block in BLOCK.finditer(text):
        language, content = block.groups()
        # The file that was named last before a block is the one that it is about.
        named = (
            tree.root
            / re.findall(r"`(kernels/swiglu/\w+\.py)`", "`kernels/swiglu/_.py`" + text[: block.start()])[-1]
        )
        if language == "python":
            assert named.exists(), "it was written as a start"
            named.write_text(content)
        elif language == "diff":
            lines = content.splitlines()
            old, new = ([line[1:] for line in lines if line[0] == sign] for sign in "-+")
            assert len(old) + len(new) == len(lines)
            before = named.read_text()
            for left, right in zip(old, new, strict=True):
                assert before.count(left) == 1
                before = before.replace(left, right)
            named.write_text(before)
        elif "pytest" not in content:
            commands.append(content.strip())
            options = " device=cpu tracking=none" if "sweep" in content else ""
            run(content.strip() + options)
    assert [command.split()[2] for command in commands] == ["pipeline.new", "pipeline.sweep"]

    for check in ("check", "format --check"):
        run(f"python -m ruff {check} --no-cache --config {ROOT}/pyproject.toml kernels/swiglu")
    rows = tree.rows("swiglu")
    found = {(row.point.provider, row.outcome.status) for row in rows}
    assert found == {("torch", "ok"), ("torch_compile", "ok"), ("triton", "verified")}
    assert len(rows) == 6
