"""``bench(isolate=True)``: real worker and verifier processes on the CPU."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kernel_pipeline import BenchError, bench
from tests.processes import completed

GIVEN = """
import torch

def make(seed):
    return torch.randn(64, 781, generator=torch.Generator().manual_seed(seed))

def reference(x):
    return torch.softmax(x, -1)
"""

SUBMITTED = """
import torch

print("imported", flush=True)
open({mark!r}, "a").write("x")

def right(x):
    return torch.softmax(x, -1)

kept = {{}}

def cached(x):
    if "first" not in kept:
        kept["first"] = torch.softmax(x, -1)
    return kept["first"].clone()

def fails(x):
    raise ValueError("no such thing")

class Holder:
    @staticmethod
    def right(x):
        return torch.softmax(x, -1)
"""


@pytest.fixture
def files(tmp_path: Path) -> tuple[Any, str, Path]:
    """Return a module with make and reference, the path of the submission, and the file that its import
    marks."""
    mark = tmp_path / "mark"
    (tmp_path / "given_to_isolated.py").write_text(GIVEN)
    (tmp_path / "submitted.py").write_text(SUBMITTED.format(mark=str(mark)))
    sys.path.insert(0, str(tmp_path))
    try:
        import given_to_isolated
    finally:
        sys.path.remove(str(tmp_path))
    sys.modules.pop("given_to_isolated")
    return given_to_isolated, str(tmp_path / "submitted.py"), mark


def times(files: tuple[Any, str, Path], name: str) -> Any:
    given, path, _ = files
    return bench(f"{path}:{name}", make=given.make, reference=given.reference, isolate=True, bytes=1000)


def test_a_right_function_is_timed_in_another_process(files: tuple[Any, str, Path]) -> None:
    result = times(files, "Holder.right")
    assert result.name == "Holder.right" and result.median_us > 0 and result.gbps
    # On busy cores a time is not valid, and the result says so.
    assert result.valid or "wait for a core" in result.why or "not audited" in result.why, result
    assert "in processes of its own" in result.notes[0]
    assert files[2].exists() and "submitted" not in sys.modules


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "message"),
    [("cached", "cached is incorrect: "), ("fails", "no such thing"), ("missing", "missing")],
)
def test_a_wrong_function_is_an_error(files: tuple[Any, str, Path], name: str, message: str) -> None:
    with pytest.raises(BenchError, match=message):
        times(files, name)


def test_a_function_that_another_process_cannot_import_is_refused(files: tuple[Any, str, Path]) -> None:
    given, path, _ = files

    def local(x: Any) -> Any:
        return x

    def refused(function: Any, message: str, **others: Any) -> None:
        given_too: dict[str, Callable[..., Any]] = {"make": given.make, "reference": given.reference}
        with pytest.raises(BenchError, match=message):
            bench(function, isolate=True, **(given_too | others))

    refused(local, "can't import test_a_function_.*local: define a function at the top of a file")
    refused(lambda x: x, "can't import .*lambda")
    refused(given.reference, "move the function to a file of its own")
    refused("nowhere.py:f", "nowhere.py:f names no file")
    refused(f"{path}:right", "needs make= and reference=", reference=None)
    refused(f"{path}:right", "can't be combined with inputs", backward=True)
    with pytest.raises(BenchError, match="is a string"):
        bench(f"{path}:right", make=given.make)


@pytest.mark.slow
def test_a_script_times_a_function_that_is_not_trusted(files: tuple[Any, str, Path], tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        GIVEN
        + "from kernel_pipeline import bench\n"
        + "if __name__ == '__main__':\n"
        + "    options = {'make': make, 'reference': reference, 'cache': 'hot', 'isolate': True}\n"
        + f"    print(bench({files[1] + ':right'!r}, **options))\n"
    )
    done = completed([sys.executable, script], cwd=tmp_path)
    assert done.returncode == 0 and done.stdout.startswith("right: "), done
