"""``python -m pipeline.compare`` on a GPU: what runs the same code is not timed, and an edit of it is."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from kernel_pipeline.machine import device
from tests.planted.tree import Tree
from tests.repository import commit

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU"),
]


@pytest.mark.long
def test_the_same_code_is_not_timed_and_an_edit_of_it_is(tmp_path: Path) -> None:
    tree = Tree(tmp_path)
    tree.know_ceilings(device.resolve("cuda"))
    (tree.root / ".gitignore").write_text("outputs/\nlocal/\nbuild/\n__pycache__/\n")
    commit(tree.root)
    source = tree.root / "kernels/square/triton.py"
    text = source.read_text()
    options = (
        *("kernel=square", "provider=triton_row", "size=1024", "dtype=float32", "num_warps=4"),
        *("preset=quick", "device=cuda", "rounds=2", "most_rounds=2", "format=markdown"),
    )
    # Another key: the host's code is part of the source.
    source.write_text(text.replace("    check_dtype(x)\n", "    check_dtype(x)\n    assert x.device\n", 1))
    assert source.read_text() != text
    same = tree.sweep(*options, command="compare")
    assert (same.returncode, same.stderr) == (0, ""), same.stderr
    assert "same code" in same.stdout and not list(tree.root.glob("outputs/comparisons/*/*/*.jsonl"))
    timed = tree.sweep(*options, "same_code=time", command="compare")
    assert "same code" not in timed.stdout
    assert list(tree.root.glob("outputs/comparisons/*/*/*.jsonl"))
    source.write_text(text.replace("(values * values)", "(values * values + 1e-30)", 1))
    edited = tree.sweep(*options, "output=outputs/edited", command="compare")
    assert "same code" not in edited.stdout
