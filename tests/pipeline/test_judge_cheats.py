"""The cheats of tests/planted/cheats as submissions in each format, judged by the real command.

A cheat is a function of a vector in place of sin(pi x) / (pi x). It is written once, as a provider. Here it
is wrapped as a module ``ModelNew``, a function ``custom_kernel`` and a solution in JSON. The suite runs one
of each family, of which tests/pipeline/test_cheats.py runs all; those with false outputs in one format each;
and two of those that need times. ``TEST_PROOFS=cheats`` runs all cheats in each format.
"""

import json
import os
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import pytest

from tests.pipeline.test_judge import BUSY, SINC, judge
from tests.planted import cheats
from tests.planted.tree import PLANTED

WHOLE = "cheats" in os.environ.get("TEST_PROOFS", "").split()

ELEMENTS = 2**16

TASK = f"""
files:
  - {{"name": "submission.py", "source": "@SUBMISSION@"}}
  - {{"name": "reference.py", "source": "reference.py"}}
tests:
  - {{"n": {ELEMENTS}}}
benchmarks:
  - {{"n": {ELEMENTS}}}
"""

REFERENCE = """
import torch


def generate_input(n, seed):
    gen = torch.Generator(device="cuda").manual_seed(seed)
    return torch.randn(n, device="cuda", generator=gen)


def ref_kernel(data):
    return torch.sinc(data)


def check_implementation(data, output):
    return torch.allclose(output, ref_kernel(data), rtol=1e-2, atol=1e-2), "mismatch"
"""

DEFINITION = {
    "name": "sinc",
    "op_type": "sinc",
    "axes": {"n": {"type": "var"}},
    "inputs": {"x": {"shape": ["n"], "dtype": "float32"}},
    "outputs": {"y": {"shape": ["n"], "dtype": "float32"}},
    "reference": "import torch\n\n\ndef run(x):\n    return torch.sinc(x)\n",
}

WORKLOAD = {"uuid": "one", "axes": {"n": ELEMENTS}, "inputs": {"x": {"type": "random"}}}

HONEST = """
import torch


def honest(x):
    return torch.sinc(x)
"""

MODULE = """

class ModelNew(torch.nn.Module):
    def forward(self, x):
        return {cheat}(x)
"""

FUNCTION = """

def custom_kernel(data):
    return {cheat}(data)
"""


def kernelbench(folder: Path, codes: Mapping[str, str]) -> tuple[Path, list[Path]]:
    """Write the problem and the submissions. Return the problem's path and theirs."""
    (folder / "sinc.py").write_text(SINC)
    modules = {name: code + MODULE.format(cheat=name) for name, code in codes.items()}
    return folder / "sinc.py", written(folder, ".py", modules)


def kernelbot(folder: Path, codes: Mapping[str, str]) -> tuple[Path, list[Path]]:
    """As ``kernelbench``."""
    (folder / "sinc").mkdir()
    (folder / "sinc" / "task.yml").write_text(TASK)
    (folder / "sinc" / "reference.py").write_text(REFERENCE)
    functions = {name: code + FUNCTION.format(cheat=name) for name, code in codes.items()}
    return folder / "sinc", written(folder, ".py", functions)


def flashinfer(folder: Path, codes: Mapping[str, str]) -> tuple[Path, list[Path]]:
    """As ``kernelbench``. Outputs are returned, so that a cheat can return any object."""
    (folder / "sinc.json").write_text(json.dumps(DEFINITION))
    (folder / "sinc.jsonl").write_text(json.dumps({"definition": "sinc", "workload": WORKLOAD}))
    solutions = {}
    for name, code in codes.items():
        spec = {
            "language": "python",
            "target_hardware": ["cpu", "gpu"],
            "entry_point": f"main.py::{name}",
            "destination_passing_style": False,
        }
        made = {"name": name, "definition": "sinc", "author": "a", "spec": spec}
        solutions[name] = json.dumps(made | {"sources": [{"path": "main.py", "content": code}]})
    return folder / "sinc.json", written(folder, ".json", solutions)


def written(folder: Path, suffix: str, texts: Mapping[str, str]) -> list[Path]:
    """Write the submissions to a folder of their own. Return their paths."""
    (folder / "by").mkdir()
    for name, text in texts.items():
        (folder / "by" / f"{name}{suffix}").write_text(text)
    return sorted((folder / "by").iterdir())


def code_of(family: str) -> str:
    """Return the code of a family, without imports from the planted kernel, which a submission has not."""
    text = (PLANTED / "cheats" / f"{family}.py").read_text()
    return re.sub(r"^from \.\w* import .*$", "", text, flags=re.MULTILINE)


Wrap = Callable[[Path, Mapping[str, str]], tuple[Path, list[Path]]]

in_each_format = pytest.mark.parametrize("wrap", [kernelbench, kernelbot, flashinfer])


def judged(
    wrap: Wrap, folder: Path, families: Mapping[str, Iterable[str]], **options: object
) -> dict[str, str]:
    """Judge cheats of some families beside an honest submission. Return the wrong verdicts: those on cheats
    that are correct, and on the honest one unless it is correct or the machine is too busy for a time.

    Some cheats save nothing until inputs come again, which they do not in the short rounds of a busy machine.
    Such a cheat may be correct if it is not faster."""
    codes = {name: code_of(family) for family, names in families.items() for name in names}
    problem, paths = wrap(folder, codes | {"honest": HONEST})
    _, found = judge(folder, problem, submission=",".join(map(str, paths)), **options)
    honest = found["results"].pop("honest")
    wrong = {
        name: str(one)
        for name, one in found["results"].items()
        if one["verdict"] == "correct" and (one["speed"] is None or one["speed"]["low"] > 1)
    }
    if honest["verdict"] != "correct" and BUSY not in honest["reason"]:
        wrong["honest"] = str(honest)
    return wrong


BY_TIME = {
    "torch_caches": ("by_contents", "by_few_elements", "looks_ahead"),
    "torch_skips": cheats.SKIPS,
    "torch_clocks": cheats.CLOCKS,
    "torch_forgers": ("edits_the_reply",),
}
"""Cheats whose outputs are right, or wrong only for inputs with few changes. Their times are false."""

BY_OUTPUTS = {
    "torch_caches": set(cheats.CACHES) - {*BY_TIME["torch_caches"]},
    "torch_outputs": cheats.OUTPUTS,
    # A submission can't import the problem's code by the name that one of the cheats needs.
    "torch_peeks": set(cheats.PEEKS) - {"imports_the_reference"},
    "torch_threads": cheats.THREADS,
    "torch_verifiers": cheats.VERIFIERS,
    "torch_forgers": set(cheats.FORGERS) - {*BY_TIME["torch_forgers"]},
    "torch_processes": ("exits_at_once", "child_holds_the_socket"),
}
"""Cheats that are found without rounds. The other ones of ``torch_processes`` compute their outputs at each
call and harm only other providers, which a submission does not reach."""


@pytest.mark.slow
@in_each_format
def test_no_cheat_is_correct(wrap: Wrap, tmp_path: Path) -> None:
    families = {family: sorted(names)[: None if WHOLE else 1] for family, names in BY_OUTPUTS.items()}
    if not WHOLE and wrap is not kernelbench:
        # The other formats share what finds a cheat, and differ in what they take for an output.
        families = {"torch_outputs": sorted(cheats.OUTPUTS)[wrap is kernelbot :: 4]}
    assert judged(wrap, tmp_path, families, rounds=0, scale=1 / 16) == {}


@pytest.mark.slow
@in_each_format
def test_no_cheat_has_a_false_time(wrap: Wrap, tmp_path: Path) -> None:
    """If the machine is too busy for an audit, no cheat has a time."""
    if not WHOLE and wrap is not kernelbench:
        pytest.skip("TEST_PROOFS leaves the cheats out")
    few = {"torch_caches": "by_contents", "torch_skips": "one_call_in_three"}
    few |= {"torch_clocks": "divides_the_samples"}
    families = BY_TIME if WHOLE else {family: [name] for family, name in few.items()}
    assert judged(wrap, tmp_path, families) == {}
