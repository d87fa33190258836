"""Make a kernel's folder from a problem's files and its submissions, and declare its kernel.

The folder holds unedited copies of the files, and ``imported.json``, which lists them. ``facts`` adds the
layouts and tolerances of the outputs, which only a run of the problem's code shows.
"""

from __future__ import annotations

import dataclasses
import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf, nan
from pathlib import Path
from typing import Any, Self

from .. import problems, tracebacks
from ..contract import Kernel, Provider, Tolerance, Work, bytes_of, one_of
from ..errors import UserError
from ..files import write_atomically
from ..records.base import Values
from .facts import ProblemFacts, facts_of
from .formats import Problem, SubmissionFile, Workloads
from .imported import COMPILED, DISTRIBUTION, FILE, REFERENCE, ImportedFiles, ModuleFile, read

GIVEN, SIGNED = "given", "alternating_signs"
"""Two distributions of inputs: the problem's own inputs, and these with every second sign changed. Many
problems make only positive inputs, which a ReLU does not change."""

CHANGED = "few_changes"
"""The distribution of the problem's own inputs for one seed, with few elements of other seeds. A submission
that keeps its outputs by a few elements of the inputs is wrong for it."""

SPECIAL: Mapping[str, tuple[float, ...]] = {"some_nan": (nan,), "some_infinities": (inf, -inf)}
"""Distributions of the problem's own inputs with few elements of these values. The problem defines the answer
if its code gives NaN and infinities at the same places in float64 and in its own dtypes."""

DISTRIBUTIONS = (
    *(GIVEN, SIGNED, CHANGED, "zeros", "equal_values", "sorted_values", "one_hot_rows"),
    *("large_values", "small_values", "denormal_values", "negative_zeros", *SPECIAL),
)

OWN_CHECK = "own_check"
"""Stands for the problem's own inputs where only the check of the format's own judge decides."""

INIT = '''"""{problem} and its submissions; python -m pipeline.judge wrote this folder."""

from pathlib import Path

from {package}.folder import declared

kernel = declared(Path(__file__).parent)
'''

FILES = {
    "reference.py": '''"""Inputs and right answers."""

from pathlib import Path

from {package}.running import Reference

_made = Reference(Path(__file__).parent)
inputs, outputs, comparison = _made.inputs, _made.outputs, _made.comparison


def reference(*tensors, **sizes):
    return _made.answer(tensors, sizes)
''',
    "providers.py": '''"""The reference and each submission as a function of tensors."""

from pathlib import Path

from {package}.running import Called

{providers}
''',
}


def at(distribution: str, workload: Values) -> Values:
    """Return the problem of a workload with inputs of a distribution."""
    return Values({**workload, DISTRIBUTION: distribution})


def write(
    folder: Path, problem: Problem, plan: Workloads, submissions: Mapping[str, SubmissionFile]
) -> ImportedFiles:
    """Write a kernel's folder in place of an earlier one. The keys of ``submissions`` are names of providers.

    Raises UserError if the folder can't be written.
    """
    try:
        return _written(folder, problem, plan, submissions)
    except OSError as error:
        raise UserError(
            f"can't copy the problem and its submissions to {folder}: {error.strerror}; make room there, or "
            "name another folder by output=."
        ) from error


def _written(
    folder: Path, problem: Problem, plan: Workloads, submissions: Mapping[str, SubmissionFile]
) -> ImportedFiles:
    shutil.rmtree(folder, ignore_errors=True)
    copies = dict(problem.files())
    texts = {file: (text, f"{problem.path}: {file}") for file, text in problem.texts().items()}
    modules = {}
    own = problem.own
    for name, one in {REFERENCE: own, COMPILED: own, **submissions}.items():
        file = copies.setdefault(one.path, f"{name}{one.path.suffix}")
        texts |= {f"{name}/{path}": (text, f"{one.path}: {path}") for path, text in one.texts.items()}
        language = "triton" if one.is_triton else "torch"
        modules[name] = ModuleFile(file=file, name=one.name, language=language, compiled=name == COMPILED)
    for path, file in copies.items():
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, folder / file)
    for file, (text, _) in texts.items():
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
        (folder / file).write_text(text)
    calls = "\n".join(f'{name} = Called(Path(__file__).parent, "{name}")' for name in modules)
    (folder / "__init__.py").write_text(INIT.format(problem=problem.name, package=__package__))
    for file, text in FILES.items():
        (folder / file).write_text(text.format(package=__package__, providers=calls))
    imported = ImportedFiles(
        code=problem.code,
        workloads=plan.all,
        literals=plan.literals,
        has_checker=problem.has_checker,
        has_answer=problem.has_answer,
        has_own_check=problem.has_own_check,
        modules=modules,
        originals={file: str(path) for path, file in copies.items()}
        | {file: original for file, (_, original) in texts.items()},
    )
    write_atomically(folder / FILE, imported.to_json(indent=2))
    return imported


@dataclass(frozen=True)
class Kept:
    """The contents of a folder's files, kept because a submission's process can write to the folder."""

    folder: Path
    contents: Mapping[str, bytes]

    @classmethod
    def now(cls, folder: Path) -> Self:
        """Keep the present contents of the files."""
        return cls(folder, _contents(folder))

    def put_back(self) -> bool:
        """Restore the files, and delete their compiled Python code. Return whether a file was changed."""
        for compiled in [*self.folder.rglob("__pycache__")]:
            shutil.rmtree(compiled, ignore_errors=True)
        now = _contents(self.folder)
        for name in now.keys() - self.contents.keys():
            (self.folder / name).unlink()
        for name, content in self.contents.items():
            if now.get(name) != content:
                (self.folder / name).parent.mkdir(parents=True, exist_ok=True)
                write_atomically(self.folder / name, content)
        return now != self.contents


def _contents(folder: Path) -> dict[str, bytes]:
    files = (path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}


def originally(folder: Path, text: str) -> str:
    """Return a text with the paths of the folder's files replaced by the original files' paths."""
    for file, original in read(folder).originals.items():
        for place in (folder, tracebacks.shown(folder)):
            text = text.replace(f"{place / file}:", f"{original}:")
    return text


def provider_name(path: Path, taken: Sequence[str]) -> str:
    """Return the name of a submission's provider: the file's name, made an identifier that is not taken."""
    name = re.sub(r"\W+", "_", path.stem, flags=re.ASCII).strip("_").lower() or "submission"
    name = name if name[0].isalpha() else f"s_{name}"
    used = {*taken, REFERENCE, COMPILED, "problem", "providers"}
    return next(one for one in (name, *(f"{name}_{n}" for n in range(2, len(used) + 3))) if one not in used)


def declared(folder: Path) -> Kernel:
    """Return the kernel that a folder holds."""
    imported = read(folder)

    def facts(problem: Any) -> ProblemFacts:
        return facts_of(folder, problems.values_of(problem))

    dimensions = tuple(name for name in imported.workloads[0] if name != DISTRIBUTION)
    return Kernel(
        problem=problem_type(imported),
        size=(next(iter(dimensions), DISTRIBUTION),),
        work=lambda problem: Work(_bytes(facts(problem)), {}),
        tolerance=lambda problem: tuple(Tolerance(*one) for one in facts(problem).tolerances),
        providers=[
            Provider(name, f"providers.py:{name}", language=one.language)
            for name, one in imported.modules.items()
        ],
        arguments=dimensions,
        comparison="comparison" if imported.has_checker else None,
        host_time=True,
        baseline=REFERENCE,
    )


def problem_type(imported: ImportedFiles) -> type:
    """Return the dataclass of a problem: its dimensions, and the distribution of its inputs."""
    fields: list[tuple[str, type, Any]] = []
    for name, first in imported.workloads[0].items():
        values = dict.fromkeys(one[name] for one in imported.workloads)
        is_size = type(first) is int
        fields.append((name, type(first), dataclasses.field(default=first) if is_size else one_of(*values)))
    words = (DISTRIBUTION, str, one_of(*DISTRIBUTIONS, OWN_CHECK, omit_default=True))
    return dataclasses.make_dataclass("Problem", [*fields, words], frozen=True, kw_only=True)


def _bytes(facts: ProblemFacts) -> int:
    return sum(bytes_of(dtype, shape) for shape, _, dtype in (*facts.inputs, *facts.outputs))
