"""Read problems that a user wrote into a file, in place of a preset's.

The file is YAML or JSON: a list of problems, or a workload as in a kernel's YAML (lists of values by
dimension, ``problems`` written out). It may also map names of kernels to such lists or workloads, as the file
named by ``KERNELS_UNTUNED`` does.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from kernel_pipeline.errors import UserError, unknown
from kernel_pipeline.records.fields import NAME

from ..store import plain_yaml
from .catalog import Entry, Workload

OPTION = "workload"
"""The command-line option that names the file."""


def is_of(written: Path, entry: Entry) -> bool:
    """Whether the option names one of the kernel's own workloads and not a file."""
    return str(written) in entry.config.workloads and not written.is_file()


def named(written: Path, entry: Entry) -> tuple[str, Workload]:
    """Return the workload that the option names, with its name: one of the kernel's own, or a file's. Raises
    UserError as ``read`` does."""
    if is_of(written, entry):
        return str(written), entry.config.workloads[str(written)]
    return read(written, entry)


def read(path: Path, entry: Entry) -> tuple[str, Workload]:
    """Read a kernel's problems from a file. Return the workload's name, which is the file's name, and the
    workload.

    Raises UserError with what to write instead for a file that is missing, can't be read, has nothing of this
    kernel, or names an unknown dimension. Values are checked when problems are made.
    """
    place = f"{OPTION}={path}"
    found = _of_kernel(_content(path, place, entry), place, entry)
    if isinstance(found, list):
        found = {"problems": found}
    if not isinstance(found, Mapping) or not found:
        raise UserError(f"{place} has no problems of {entry.name}: write a list of them under problems.")
    found = {"x": entry.loaded.kernel.size[0], **found}
    try:
        made = Workload.model_validate(found)
    except ValidationError as error:
        problem = error.errors()[0]
        where = ".".join(map(str, problem["loc"]))
        raise UserError(f"{place}: {where}: {problem['msg']}.") from error
    dimensions = entry.loaded.kernel.dimensions()
    named = [*made.lists, *(name for one in made.problems or () for name in one)]
    for name in named:
        if name not in dimensions:
            raise UserError(f"{place}: {unknown(f'dimension of {entry.name}', name, dimensions)}")
    if not (made.problems or made.size or made.lists):
        raise UserError(f"{place} has no problems of {entry.name}: write a list of them under problems.")
    return path.stem if re.fullmatch(NAME, path.stem) else OPTION, made


def _content(path: Path, place: str, entry: Entry) -> Any:
    try:
        return plain_yaml.load(path.read_text())
    except OSError as error:
        raise UserError(
            f"{place} can't be read ({error.strerror}); name a file with problems, or one of {entry.name}'s "
            f"workloads: {', '.join(entry.config.workloads)}."
        ) from error
    except UnicodeDecodeError as error:
        raise UserError(f"{place} is not a text file; name a YAML or JSON file with problems.") from error
    except ValueError as error:
        raise UserError(f"can't read {place}: {error}; write its values out.") from error
    except yaml.MarkedYAMLError as error:
        line = f", line {error.problem_mark.line + 1}" if error.problem_mark else ""
        raise UserError(f"can't read {place}{line}: {error.problem}.") from error
    except yaml.YAMLError as error:
        raise UserError(f"{place} is neither YAML nor JSON.") from error


def _of_kernel(content: Any, place: str, entry: Entry) -> Any:
    """Return the part of a file that is about this kernel."""
    if isinstance(content, Mapping):
        if entry.name in content:
            return content[entry.name]
        own = {*entry.loaded.kernel.dimensions(), *Workload.model_fields}
        if content and not own & content.keys():
            raise UserError(f"{place} has problems of {_listed(content)}, but none of {entry.name}.")
    return content


def _listed(names: Iterable[Any]) -> str:
    return ", ".join(sorted(map(str, names)))
