"""An exception names the author's file, line and source, wherever it came from."""

import ast
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from kernel_pipeline.tracebacks import described

SOURCE = """\
import json


def kernel(x):
    y = x + 1
    return z


def call(x):
    return json.loads(x)


def wrapped(x):
    try:
        call(x)
    except ValueError as error:
        raise RuntimeError("wrapped") from error
"""


@pytest.fixture
def author(tmp_path: Path) -> dict[str, Callable[[str], object]]:
    """The functions of an author's file."""
    path = tmp_path / "triton.py"
    path.write_text(SOURCE)
    names: dict[str, Callable[[str], object]] = {}
    exec(compile(SOURCE, str(path), "exec"), names)  # a module of a folder of its own
    return names


def test_the_innermost_line_of_the_authors_is_named(
    author: dict[str, Callable[[str], object]], tmp_path: Path
) -> None:
    with pytest.raises(json.JSONDecodeError) as raised:
        author["call"]("{")
    said = described(raised.value, [tmp_path])
    assert said.startswith(f"{tmp_path}/triton.py:10: `return json.loads(x)`: JSONDecodeError: Expecting")
    with pytest.raises(RuntimeError) as wrapped:
        author["wrapped"]("{")
    assert described(wrapped.value, [tmp_path]).startswith(f"{tmp_path}/triton.py:17: `raise RuntimeError(")
    assert described(raised.value, [tmp_path / "other"]).startswith("JSONDecodeError: Expecting")


def test_what_an_interpreter_raises_again_is_told_where_the_kernel_raised_it(
    author: dict[str, Callable[[str], object]], tmp_path: Path
) -> None:
    def interpreter(text: str) -> None:
        """As Triton's, which calls the kernel and raises what it raised again."""
        try:
            author["kernel"](text)
        except TypeError as error:
            raise RuntimeError(repr(error)) from error

    path = tmp_path / "triton.py"
    launch = compile(SOURCE + "\n\ndef launch(x):\n    run(x)\n", str(path), "exec")
    names: dict[str, Callable[[str], object]] = {"run": interpreter}
    exec(launch, names)
    with pytest.raises(RuntimeError) as raised:
        names["launch"]("")
    # kernel's `return z` is not reached: x + 1 of a text is what fails.
    assert described(raised.value, [tmp_path]).startswith(f"{path}:5: `y = x + 1`: RuntimeError: TypeError(")


def test_a_file_that_is_no_python_is_named(tmp_path: Path) -> None:
    (tmp_path / "cuda.py").write_text("x = 1\ndef f(:\n")
    with pytest.raises(SyntaxError) as raised:
        compile((tmp_path / "cuda.py").read_text(), str(tmp_path / "cuda.py"), "exec")
    assert described(raised.value, [tmp_path]).startswith(f"{tmp_path}/cuda.py:2: `def f(:`: SyntaxError: ")


class CompilationError(Exception):
    """As Triton's: it knows the source of the function that it compiled, and a node of it."""

    def __init__(self, src: str, node: ast.AST) -> None:
        super().__init__("z is not defined")
        self.src = src
        self.node = node


def test_what_triton_can_not_compile_is_named_by_its_line_in_the_file(
    author: dict[str, Callable[[str], object]], tmp_path: Path
) -> None:
    source = SOURCE[SOURCE.index("def kernel") : SOURCE.index("def call")]
    (function,) = ast.parse(source).body
    assert isinstance(function, ast.FunctionDef)
    error = CompilationError(source, function.body[-1])
    assert described(error, [tmp_path]) == (
        f"{tmp_path}/triton.py:6: `return z`: CompilationError: z is not defined"
    )
