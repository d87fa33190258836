"""Read others' problems, in the formats that the judge knows, as data.

KernelBot's tasks are in YAML, which the library does not read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from kernel_pipeline import loading
from kernel_pipeline.errors import UserError
from kernel_pipeline.judging import flashinferbench, kernelbench, kernelbot
from kernel_pipeline.judging.formats import Problem
from kernel_pipeline.judging.kernelbot import REFERENCE_FILE, TASK_FILE, KernelBotTask

from ..store import plain_yaml

WORKLOADS = ("tests", "benchmarks")


def problem(path: Path, workloads: Path | None = None, most_workloads: int | None = None) -> Problem:
    """Read a problem in the format that its path shows. Raises UserError, with file and line, if it is not in
    the format."""
    if not path.exists() and str(path) in loading.names():
        raise UserError(
            f"kernel={path}: {path} is a kernel of this repository, which pipeline.sweep measures; write the "
            "path of a problem's file, or of a KernelBot task's folder."
        )
    if path.is_dir() and not (path / TASK_FILE).exists():
        raise UserError(
            f"{path} is a folder without {TASK_FILE}: only a KernelBot task is a folder; write the path of a "
            "problem's file."
        )
    if path.is_dir() or path.name == TASK_FILE:
        return task(path if path.is_dir() else path.parent)
    if path.suffix == ".json":
        return flashinferbench.problem(path, workloads, most_workloads)
    return kernelbench.problem(path)


def task(folder: Path) -> KernelBotTask:
    """Read a task. Raises UserError, with file and line, for a task.yml that is not valid, and for an absent
    file that it names."""
    path = folder / TASK_FILE
    try:
        text = path.read_text()
        data = plain_yaml.load(text)
        lines = _Lines(path, yaml.compose(text, yaml.SafeLoader))
    except OSError as error:
        raise UserError(f"{path} can't be read: {error.strerror}.") from error
    except (ValueError, yaml.YAMLError) as error:
        mark = getattr(error, "problem_mark", None)
        line = mark.line + 1 if mark is not None else 1
        problem = getattr(error, "problem", None) or str(error).splitlines()[0]
        raise UserError(f"{path}:{line}: it is not valid YAML: {problem}.") from error
    if not isinstance(data, dict):
        raise lines.error("it is not a mapping with files, tests and benchmarks")
    if data.get("lang", "py") != "py":
        raise lines.error(f"lang is {data['lang']!r}: only tasks in Python (py) are judged", "lang")
    if data.get("multi_gpu"):
        raise lines.error("multi_gpu: only tasks for one GPU are judged", "multi_gpu")
    tests, benchmarks = (_workloads(data, name, lines) for name in WORKLOADS)
    if not tests and not benchmarks:
        raise lines.error("it has neither tests nor benchmarks: list the arguments of generate_input")
    return kernelbot.task(folder, _sources(folder, data, lines), tests, benchmarks)


class _Lines:
    """The lines of a YAML document's values."""

    def __init__(self, path: Path, root: Any) -> None:
        self._path = path
        self._root = root

    def error(self, text: str, *keys: str | int) -> UserError:
        """Return the error of the value that the keys lead to."""
        node = self._root
        for key in keys:
            if isinstance(node, yaml.SequenceNode) and isinstance(key, int):
                node = node.value[key]
            elif isinstance(node, yaml.MappingNode):
                node = next((value for name, value in node.value if name.value == key), node)
        line = 1 if node is None else node.start_mark.line + 1
        return UserError(f"{self._path}:{line}: {text}.")


def _sources(folder: Path, data: Mapping[str, Any], lines: _Lines) -> dict[str, Path]:
    """Return the files that a task names, without the submission."""
    files, found = data.get("files"), dict[str, Path]()
    if not isinstance(files, list):
        raise lines.error("files must be a list of mappings with name and source", "files")
    for place, one in enumerate(files):
        name, source = (one.get(key) for key in ("name", "source")) if isinstance(one, dict) else (None, None)
        if not isinstance(name, str) or not isinstance(source, str):
            raise lines.error("a file must be a mapping with name and source", "files", place)
        if Path(name).name != name:
            raise lines.error(f"{name!r} must be the name of a file, without a folder", "files", place)
        if source.startswith("@"):
            continue
        if not (folder / source).is_file():
            raise lines.error(f"the file {folder / source} is not there", "files", place)
        found[name] = folder / source
    if REFERENCE_FILE not in found:
        raise lines.error(f"files must name a {REFERENCE_FILE}", "files")
    return found


def _workloads(data: Mapping[str, Any], name: str, lines: _Lines) -> Sequence[dict[str, Any]]:
    """Return the tests or benchmarks of a task."""
    listed = data.get(name) or []
    if not isinstance(listed, list):
        raise lines.error(f"{name} must be a list of the arguments of generate_input", name)
    for place, one in enumerate(listed):
        if not isinstance(one, dict) or not all(isinstance(key, str) and key.isidentifier() for key in one):
            raise lines.error("a workload must be a mapping of names to values", name, place)
        for key, value in one.items():
            each = value if isinstance(value, list) else [value]
            if not all(isinstance(x, (int, float, str)) for x in each):
                raise lines.error(f"{key} must be a number, a flag, a word or a list of these", name, place)
    return listed
