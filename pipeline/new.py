"""Command ``new``: write a kernel that runs at once, or a project of your own, as a start for their author.

    python -m pipeline.new kernel=my_kernel
    python -m pipeline.new kernel=../mine/my_kernel
    python -m pipeline.new kernel=./my_kernel from=path/to/kernel.py
    python -m pipeline.new kernel=./my_kernel from=path/to/kernel.py:launcher
    python -m pipeline.new project=my_kernels

A name alone becomes a folder of kernels/; a path becomes a kernel outside of the repository.

`from=FILE` makes the kernel of a file's launcher: a function with `kernel[grid](...)`, or a
`torch.autograd.Function` whose `forward` has one. The launcher is copied with all that it needs, from other
files of its package, too. Its inputs are guessed from its parameters and tried in Triton's interpreter, which
runs the file's code. The command says what was guessed and what is left to write.

`project=FOLDER` writes a project in which `dvc repro` runs at once: the options (conf/), the stages
(dvc.yaml), the kernels to measure (params.yaml), a kernel that computes max(x, 0), a Makefile, a workflow for
GitHub that verifies the kernels without a GPU, and a requirements.txt with the version of this package. Makes
the folder a git repository unless it lies in one.
"""

from __future__ import annotations

import keyword
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from kernel_pipeline import loading
from kernel_pipeline.errors import UserError

from . import as_typed
from .command.options import NewConfig
from .command.run import run_stage, say
from .command.words import positional
from .points import new_project, taken, templates
from .points.catalog import CONF, KERNELS

MODULES = {*sys.stdlib_module_names, "kernel_pipeline", "kernels", "numpy", "pipeline", "torch", "triton"}
"""Modules that a kernel's files may import; a kernel can't have such a name."""

START = "It computes max(x, 0). Write your operation into torch.py, triton.py and __init__.py."


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
        folder = Path(where).expanduser() if "/" in where else KERNELS / where
        name = folder.name
        if folder.resolve().parent == loading.ROOT:
            place = cls(name, name, loading.ROOT / name, CONF / f"{name}.yaml", False)
        else:
            place = cls(name, where.rstrip("/"), folder, folder / "kernel.yaml", True)
        if not re.fullmatch("[a-z][a-z0-9_]*", name) or keyword.iskeyword(name):
            raise UserError(
                f"kernel={where}: a kernel's name is a lower-case Python identifier, such as my_kernel."
            )
        if name in MODULES:
            raise UserError(f"kernel={where}: {name} is the name of a Python module; choose another name.")
        if place.is_outside and name in loading.names():
            raise UserError(
                f"kernel={where}: this repository also has a kernel {name}, and both kernels would share a "
                "ledger; choose another name."
            )
        for path in place._in_the_way():
            raise UserError(
                f"{_shown(path)} exists already, and this command overwrites no file: choose another name."
            )
        return place

    def _in_the_way(self) -> list[Path]:
        """Return existing files that the new files would replace or hide, without Python's caches."""
        beside = [self.yaml, *([] if self.is_outside else [self.folder.with_suffix(".py")])]
        found = [path for path in beside if path.exists()]
        if self.folder.is_dir():
            return found + [path for path in sorted(self.folder.iterdir()) if path.name != "__pycache__"]
        return found + ([self.folder] if self.folder.exists() else [])


def run(config: NewConfig) -> None:
    """Write a kernel or a project."""
    if config.project is not None:
        write_project(config.project.expanduser())
    else:
        write_kernel(config, str(config.kernel))


def write_project(folder: Path) -> None:
    """Write a project, and print the next command."""
    count = new_project.write(folder)
    say(f"{folder}: {count} files. Its kernel {new_project.KERNEL} computes max(x, 0).")
    say(f"Run next: cd {folder} && git add --all && git commit --message 'A project' && dvc repro")


def write_kernel(config: NewConfig, where: str) -> None:
    """Write a kernel, print the purpose of its files and the next command."""
    place = KernelPaths.named(where)
    purpose, notes = templates.PURPOSE, [START]
    if config.source is None:
        files: Mapping[Path, str] = templates.kernel(place.name, place.folder, place.yaml)
    else:
        source, _, wanted = config.source.partition(":")
        made = taken.kernel(place.name, place.folder, place.yaml, Path(source).expanduser(), wanted or None)
        files, purpose, notes = made.files, taken.PURPOSE, [*made.notes]
    templates.write(files)
    say("Written:")
    for path in files:
        say(f"  {_shown(path)}: {purpose.get(path.name, 'problems, workloads and presets')}")
    for note in notes:
        say(note)
    if place.folder.parent == KERNELS:
        say(f"For `dvc repro`, add {place.name} to the kernels of params.yaml.")
    say(f"Run next: {as_typed('sweep', f'kernel={place.where}', 'preset=smoke')}")


def _shown(path: Path) -> Path:
    """Return a path relative to the working folder if it is below it."""
    here = Path.cwd()
    return path.relative_to(here) if path.is_relative_to(here) else path


if __name__ == "__main__":
    sys.argv[1:] = positional(sys.argv[1:], "kernel")
    run_stage("new", NewConfig, run)
