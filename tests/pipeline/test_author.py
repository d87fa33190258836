"""How a kernel's author sees a mistake: an exit code, the wrong line, and a debugger."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.planted.tree import Tree, cpu_tree
from tests.processes import completed

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("author")]

WORDS = ("kernel=square", "size=37", "provider=triton_row,triton_flat,torch_mul")


@pytest.fixture(scope="module")
def broken(tmp_path_factory: pytest.TempPathFactory) -> tuple[Tree, subprocess.CompletedProcess[str]]:
    """Return a checkout and a sweep of it. One Triton provider raises, another Triton provider and a torch
    provider are wrong."""
    tree = cpu_tree(tmp_path_factory.mktemp("author"))
    folder = tree.root / "kernels" / "square"
    triton, torch = (folder / "triton.py").read_text(), (folder / "torch.py").read_text()
    # Break square_flat's cdiv and the store of the other Triton kernel.
    triton = triton.replace("triton.cdiv(x.numel(), block_size)", "triton.cdiv(x.numel(), 0)")
    triton = triton.replace("values * values", "values * 3", 1)
    (folder / "triton.py").write_text(triton)
    assert torch.count("return x * x") == 1
    (folder / "torch.py").write_text(torch.replace("return x * x", 'print("in torch_mul")\n    return x * 3'))
    return tree, tree.sweep(*WORDS, "allow=null")


def test_failures_of_own_providers_are_no_success(
    broken: tuple[Tree, subprocess.CompletedProcess[str]],
) -> None:
    tree, done = broken
    statuses = {row.point.provider: row.outcome.status for row in tree.rows("square")}
    # torch_square is the baseline, so the sweep adds it.
    assert statuses == {
        "torch_square": "ok",
        "triton_row": "incorrect",
        "triton_flat": "runtime_error",
        "torch_mul": "incorrect",
    }
    assert (done.returncode, done.stderr) == (
        1,
        "error: 2 points of own providers failed (1 incorrect, 1 runtime_error), so the exit code is 1; with "
        "allow=incorrect,runtime_error it is 0.\n",
    )
    # A failure in the ledger counts like one that was just measured. torch's failures do not count.
    again = tree.in_turn(
        "sweep",
        [*WORDS, "allow=incorrect"],
        [*WORDS, "allow=incorrect,runtime_error"],
        ["kernel=square", "size=37", "provider=torch_mul", "allow=null"],
    )
    assert [one.returncode for one in again] == [1, 0, 0], again
    assert again[0].stderr.startswith("error: 1 point of own providers failed (1 runtime_error), so the")


def test_an_error_names_the_authors_line(broken: tuple[Tree, subprocess.CompletedProcess[str]]) -> None:
    tree, done = broken
    lines = (tree.root / "kernels/square/triton.py").read_text().splitlines()
    number = next(number for number, line in enumerate(lines, 1) if "x.numel(), 0)" in line)
    place = f"kernels/square/triton.py:{number}: `{lines[number - 1].strip()}`: ZeroDivisionError: "
    assert place in " ".join(done.stdout.split())
    errors = [row.outcome.error for row in tree.rows("square") if row.point.provider == "triton_flat"]
    assert errors[0] is not None and errors[0].startswith(place)


def test_debug_calls_the_provider_in_this_process_and_writes_no_row(
    broken: tuple[Tree, subprocess.CompletedProcess[str]], tmp_path: Path
) -> None:
    tree = broken[0].copy(tmp_path)
    path = tree.root / "kernels/square/triton.py"
    text = path.read_text().replace("triton.cdiv(x.numel(), 0)", "triton.cdiv(x.numel(), block_size)")
    path.write_text(
        re.sub(r"(\n    grid = launch_grid\(.*\n    _square_flat)", r"\n    breakpoint()\1", text)
    )
    before = tree.ledger("square").read_bytes()
    done = completed(
        [sys.executable, "-m", "pipeline.sweep", *WORDS, "device=cpu", "preset=smoke", "debug=true"],
        cwd=tree.root,
        env=tree.variables,
        input="p block_size * 1000\nc\n",
    )
    assert "in torch_mul\n" in done.stdout, "what a provider prints is seen"
    assert "(Pdb) 256000\n" in done.stdout, "and it can be stepped through"
    assert re.search(r"square/triton_flat .*: right\n", done.stdout)
    assert re.search(r"square/triton_row .*: incorrect: \d+ of 296 elements are wrong", done.stdout)
    assert (done.returncode, done.stderr.count("\n")) == (1, 1), done.stderr
    assert tree.ledger("square").read_bytes() == before
