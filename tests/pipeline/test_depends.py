"""The files that a kernel opens in its folder or imports from ``sys.path`` are part of its rows' keys."""

from pathlib import Path

import pytest

from tests.planted import outside
from tests.project import python

RUN = {
    "a file that is executed": """from pathlib import Path

scope: dict = {}
exec((Path(__file__).parent / "rule.txt").read_text(), scope)


def double(x):
    return scope["rule"](x)
""",
    "a module on sys.path": """from rule_of_others import rule


def double(x):
    return rule(x)
""",
}
RULE = "def rule(x):\n    # {comment}\n    return {result}\n"


def sweep(made: Path, output: Path) -> str:
    words = [f"kernel={made}", "preset=smoke", "device=cpu", "provider=whole", "n=64", "dtype=float32"]
    done = python(
        "-m",
        "pipeline.sweep",
        *words,
        "tracking=none",
        f"output={output}",
        PYTHONPATH=str(made.parent / "lib"),
    )
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("how", RUN)
def test_a_file_that_a_kernel_depends_on_is_in_its_key(tmp_path: Path, how: str) -> None:
    made = outside.write(tmp_path)
    (made / "whole.py").write_text(RUN[how])
    (tmp_path / "lib").mkdir()
    rule = made / "rule.txt" if "file" in how else tmp_path / "lib" / "rule_of_others.py"

    def write(result: str, comment: str = "twice") -> None:
        rule.write_text(RULE.format(result=result, comment=comment))

    write("x + x")
    assert "1 point measured" in (first := sweep(made, tmp_path / "out")), first
    if how == "a module on sys.path":
        write("x + x", comment="the same")
    assert "0 points measured" in sweep(made, tmp_path / "out")
    write("x - x")
    assert "incorrect" in (edited := sweep(made, tmp_path / "out")), edited
