"""The examples in examples/ run unchanged, also on a CPU."""

import ast
import json
import re
import runpy
import sys
import sysconfig
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from tests.project import python

ROOT = Path(__file__).parents[1]
BLOCK = ROOT / "examples" / "transformer_block.py"
PACKAGES = sysconfig.get_path("purelib")
"""The folder of installed packages. On PYTHONPATH it has no editable installations."""


@pytest.fixture
def example() -> dict[str, Any]:
    return runpy.run_path(str(BLOCK))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_block_of_these_kernels_is_as_exact_as_torchs(
    example: dict[str, Any], dtype: torch.dtype, capsys: pytest.CaptureFixture[str]
) -> None:
    torch.manual_seed(0)
    ours, torchs = (example["Block"](64, 2, example[name]).to(dtype) for name in ("OURS", "TORCHS"))
    torchs.load_state_dict(ours.state_dict())
    x = torch.randn(2, 9, 64).to(dtype)
    assert example["check"](ours, torchs, x)
    assert "largest error" in capsys.readouterr().out
    ours.functions = example["Functions"](**{**vars(ours.functions), "gelu": torch.nn.functional.relu})
    assert not example["check"](ours, torchs, x), "another function in its place shows"


class Largest(TorchDispatchMode):
    """Record the number of elements of the largest tensor that any operator returns."""

    elements = 0

    def __torch_dispatch__(
        self, func: Any, types: object, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        made = [one.numel() for one in tree_leaves(out) if isinstance(one, torch.Tensor)]
        self.elements = max(self.elements, *made, 0)
        return out


def test_the_exact_block_never_has_the_scores_of_all_heads(example: dict[str, Any]) -> None:
    torch.manual_seed(0)
    batch, tokens, hidden, heads = 2, 128, 32, 8
    block = example["Block"](hidden, heads, example["TORCHS"])
    x, grad = torch.randn(2, batch, tokens, hidden)
    with Largest() as largest, sdpa_kernel(SDPBackend.MATH):
        made = example["exactly"](block, x, grad)
    assert largest.elements == batch * tokens * 4 * hidden < batch * heads * tokens**2
    whole = block.double()
    for mine, right in zip(made, example["gradients"](whole, x.double(), grad.double()), strict=True):
        assert mine.dtype == torch.float64
        torch.testing.assert_close(mine, right, rtol=1e-9, atol=1e-9)


@pytest.mark.slow
def test_the_blocks_own_command_runs_in_a_checkout_that_is_not_installed() -> None:
    command = re.search(r"^    python (.+)$", BLOCK.read_text(), re.MULTILINE)
    assert command is not None
    done = python("-S", *command[1].split(), "--help", PYTHONPATH=PACKAGES)
    assert done.returncode == 0 and done.stdout.startswith("usage: "), done.stderr


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.xdist_group("inductor")
def test_the_block_is_timed_eager_and_compiled() -> None:
    small = ("--tokens", "8", "--hidden", "128", "--heads", "2", "--seconds", "0.01")
    done = python("-m", "examples.transformer_block", *small)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    rows = re.findall(r"^(\w[\w, ]*\w) +[\d.]+ +[\d.]+ +[\d.]+", done.stdout, re.MULTILINE)
    passes = [
        f"{passes}, {how}" for how in ("eager", "compiled") for passes in ("forward", "forward and backward")
    ]
    assert rows == [*passes, "rmsnorm", "layernorm", "attention", "gelu"]


def test_heads_that_do_not_divide_are_one_sentence(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", [str(BLOCK), "--heads", "3"])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(BLOCK), run_name="__main__")
    assert ended.value.code == 2
    assert capsys.readouterr().err.rstrip().endswith("--heads 3 do not divide --hidden 256: name a divisor.")


@pytest.mark.slow
def test_the_notebook_of_the_library_runs_from_its_first_cell_to_its_last(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Each cell as IPython runs it: its last expression is shown."""
    notebook = json.loads((ROOT / "examples/library.ipynb").read_text())
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MPLBACKEND", "agg")
    variables: dict[str, Any] = {}
    shown: list[str] = []
    for cell in notebook["cells"]:
        assert cell["cell_type"] == "markdown" or cell["outputs"] == [], "committed without outputs"
        if cell["cell_type"] == "code":
            tree = ast.parse("".join(cell["source"]))
            last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
            exec(compile(tree, cell["id"], "exec"), variables)
            if isinstance(last, ast.Expr):
                value = eval(compile(ast.Expression(last.value), cell["id"], "eval"), variables)
                html = getattr(value, "_repr_html_", None)
                shown.append(html() if html else repr(value))
    assert len(notebook["cells"]) == 20
    text = "\n".join(shown)
    assert "wrong: large values" in text and "<table" in text
