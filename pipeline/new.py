"""Command ``new``: write the folder and YAML of a kernel that runs at once, as a start for its author.

    python -m pipeline.new kernel=my_kernel
    python -m pipeline.new kernel=./my_kernel
    python -m pipeline.new kernel=../mine/my_kernel

A name alone becomes a folder of kernels/; a path becomes a kernel outside of the repository.
"""

from __future__ import annotations

import ast
import keyword
import re
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from jinja2 import Environment as Jinja
from jinja2 import FileSystemLoader, StrictUndefined

from kernel_pipeline import loading
from kernel_pipeline.errors import UserError
from kernel_pipeline.files import write_atomically
from pipeline import as_typed
from pipeline.command.options import NewConfig
from pipeline.command.run import run_stage, say
from pipeline.points.catalog import CONF

TEMPLATES = Path(__file__).with_name("kernel_template")

MODULES = {*sys.stdlib_module_names, "kernel_pipeline", "kernels", "numpy", "pipeline", "torch", "triton"}
"""Modules that a kernel's files may import; a kernel can't have such a name."""

PURPOSE = {
    "__init__.py": "the problem, its work and tolerance, the providers and their parameters; without torch",
    "reference.py": "the inputs, and the right answer in float64",
    "torch.py": "the definition in torch",
    "triton.py": "the Triton provider",
}
"""The Python files of a kernel, each with its content."""


@dataclass(frozen=True)
class KernelPaths:
    """The paths of a new kernel's files. ``where`` is the value of ``kernel=`` for commands."""

    name: str
    where: str
    folder: Path
    yaml: Path
    is_outside: bool

    @classmethod
    def named(cls, where: str) -> KernelPaths:
        """Return the paths for ``kernel=``. Raises UserError for an impossible or a taken name."""
        folder = Path(where).expanduser() if "/" in where else loading.ROOT / where
        name = folder.name
        if folder.resolve().parent == loading.ROOT:
            place = cls(name, name, loading.ROOT / name, CONF / f"{name}.yaml", False)
        else:
            place = cls(name, where.rstrip("/"), folder, folder / "kernel.yaml", True)
        if not re.fullmatch("[a-z][a-z0-9_]*", name) or keyword.iskeyword(name):
            raise UserError(f"kernel={where}: a kernel's name is a lower-case Python identifier, my_kernel.")
        if name in MODULES:
            raise UserError(f"kernel={where}: {name} is the name of a Python module; choose another.")
        if place.is_outside and name in loading.names():
            raise UserError(
                f"kernel={where}: {name} is a kernel of this repository, and both would share a ledger; "
                "choose another name."
            )
        for path in place._in_the_way():
            raise UserError(
                f"{_shown(path)} is there already, and nothing is overwritten; choose another name."
            )
        return place

    def _in_the_way(self) -> list[Path]:
        """Return existing files that the new ones would replace or hide, without Python's caches."""
        beside = [self.yaml, *([] if self.is_outside else [self.folder.with_suffix(".py")])]
        found = [path for path in beside if path.exists()]
        if self.folder.is_dir():
            return found + [path for path in sorted(self.folder.iterdir()) if path.name != "__pycache__"]
        return found + ([self.folder] if self.folder.exists() else [])


def run(config: NewConfig) -> None:
    """Write the files, and print their purpose and the next command."""
    place = KernelPaths.named(config.kernel)
    used = {
        getattr(node, field, None)
        for file in PURPOSE
        for node in ast.walk(ast.parse(_rendered(file, "placeholder")))
        for field in ("id", "arg", "name")
    }
    if place.name in used:
        raise UserError(
            f"kernel={place.where}: its files already use {place.name} for something else; "
            "choose another name."
        )
    files = {place.folder / file: _rendered(file, place.name) for file in PURPOSE}
    files[place.yaml] = _rendered("kernel.yaml", place.name)
    write(files)
    say("Written:")
    for path in files:
        say(f"  {_shown(path)}: {PURPOSE.get(path.name, 'problems, workloads and presets')}")
    say("It computes max(x, 0). Write your operation into torch.py, triton.py and __init__.py.")
    if not place.is_outside:
        say(f"For `dvc repro`, add {place.name} to the kernels of params.yaml.")
    say(f"Run next: {as_typed('sweep', f'kernel={place.where}', 'preset=smoke')}")


def _rendered(file: str, name: str) -> str:
    jinja = Jinja(loader=FileSystemLoader(TEMPLATES), undefined=StrictUndefined, keep_trailing_newline=True)
    return jinja.get_template(f"{file}.j2").render(name=name)


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


def _shown(path: Path) -> Path:
    """Return a path relative to the working folder if it is below it."""
    here = Path.cwd()
    return path.relative_to(here) if path.is_relative_to(here) else path


if __name__ == "__main__":
    run_stage("new", NewConfig, run)
