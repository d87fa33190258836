"""The files that a new kernel and a new project start with, written from templates."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from jinja2 import Environment as Jinja
from jinja2 import FileSystemLoader, StrictUndefined

from kernel_pipeline.errors import UserError
from kernel_pipeline.files import write_atomically

from .. import CODE

KERNEL = "kernel_template"

PURPOSE = {
    "__init__.py": "the problem, its work and tolerance, the providers and their parameters; without torch",
    "reference.py": "the inputs, and the right answer in float64",
    "torch.py": "the definition in torch",
    "triton.py": "the Triton provider",
}
"""The Python files of a kernel, each with its content."""


def rendered(folder: str, file: str, **given: Any) -> str:
    """Return a file, given its template in a folder of this package and the template's variables."""
    loader = FileSystemLoader(CODE / folder)
    jinja = Jinja(loader=loader, undefined=StrictUndefined, keep_trailing_newline=True)
    return jinja.get_template(f"{file}.j2").render(**given)


def kernel(name: str, folder: Path, yaml: Path) -> dict[Path, str]:
    """Return the files of a new kernel by their paths, with the purpose of each in ``PURPOSE``. Raises
    UserError for a name that has another meaning in these files."""
    used = {
        getattr(node, field, None)
        for file in PURPOSE
        for node in ast.walk(ast.parse(rendered(KERNEL, file, name="placeholder")))
        for field in ("id", "arg", "name")
    }
    if name in used:
        raise UserError(f"kernel={name}: {name} is a reserved name in a kernel's files; choose another name.")
    files = {folder / file: rendered(KERNEL, file, name=name) for file in PURPOSE}
    return files | {yaml: rendered(KERNEL, "kernel.yaml", name=name)}


def write(files: Mapping[Path, str]) -> None:
    """Write all files, or none if one fails. Raises UserError for a file that can't be written."""
    written: list[Path] = []
    try:
        for path, text in files.items():
            write_atomically(path, text.encode())
            written.append(path)
    except UserError:
        for path in written:
            path.unlink()
        with suppress(OSError):
            next(iter(files)).parent.rmdir()
        raise
