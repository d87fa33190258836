"""The files of a kernel that is made of a launcher from another project's file."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kernel_pipeline.errors import UserError

from . import launcher_probe, templates
from .launcher_file import Launcher, launcher
from .launcher_probe import SIZES, InputGuess, ProbeQuestion, ProbeResult

TEMPLATES = "launcher_template"

PURPOSE = {
    "__init__.py": "the problem, its work and tolerance, and the providers; without torch",
    "reference.py": "the inputs as they were guessed, and the right answer in float64",
    "torch.py": "the definition in torch",
    "triton.py": "the launcher with its kernels",
}
"""The Python files of such a kernel, each with its content."""

LARGER = (2, 16, 64)
"""The sizes of workloads, as multiples of the guess's last dimension."""


@dataclass(frozen=True)
class TakenKernel:
    """The files of a kernel by their paths, and sentences about what was guessed and what is missing."""

    files: Mapping[Path, str]
    notes: Sequence[str]


def kernel(name: str, folder: Path, yaml: Path, source: Path, wanted: str | None) -> TakenKernel:
    """Return the files of a kernel made of a launcher. Raises UserError if the file has no launcher that can
    be taken."""
    taken = launcher(source, wanted)
    tensors, numbers, written, unknown = launcher_probe.arguments(taken)
    if not tensors:
        raise UserError(f"{source}: {taken.name} has no parameter that may be a tensor.")
    entry = f"{name}_launched" if name in taken.names else name
    call = f"{taken.called}({', '.join(written)})"
    guess, found = launcher_probe.probe(
        f"{taken.code}\n\ndef probe({', '.join([*tensors, *numbers])}):\n    return {call}\n",
        tensors,
        ProbeQuestion(
            guesses=tuple(launcher_probe.guesses(tensors)),
            numbers=numbers,
            definitions=tuple(launcher_probe.definitions(taken, source.stem, tensors)),
        ),
    )
    used = guess or next(launcher_probe.guesses(tensors))
    given = _variables(name, entry, source, taken, used, found, numbers)
    given["call"] = f"{taken.called}({', '.join(_cloned(written, found.changed))})"
    files = {folder / file: templates.rendered(TEMPLATES, file, **given) for file in PURPOSE}
    files[yaml] = templates.rendered(TEMPLATES, "kernel.yaml", **given)
    return TakenKernel(files, list(_notes(taken, used, found, unknown, guess is not None)))


def _cloned(written: Sequence[str], changed: Sequence[str]) -> list[str]:
    """Return the arguments of the call, with copies of the inputs that it overwrites."""
    return [f"{one}.clone()" if one.rpartition("=")[2] in changed else one for one in written]


def _variables(
    name: str,
    entry: str,
    source: Path,
    taken: Launcher,
    guess: InputGuess,
    found: ProbeResult,
    numbers: Mapping[str, float],
) -> dict[str, Any]:
    """Return the variables of the templates."""
    dimensions = list(dict.fromkeys(one for shape in guess.shapes.values() for one in shape))
    size = next(iter(guess.shapes.values()))[-1]
    shapes = {one: _tuple([f"problem.{part}" for part in shape]) for one, shape in guess.shapes.items()}
    floats = [one for one in guess.shapes if one not in guess.indices]
    outputs = found.outputs[:1] if found.definition else found.outputs
    made = [_tuple([_dimension(part, dimensions) for part in one.shape]) for one in outputs]
    fixed = [f'"{one.dtype}"' if one.dtype else "problem.dtype" for one in outputs]
    dtypes = [f"dtype_of({one})" for one in fixed]
    read = [f"bytes_of(problem.dtype, {', '.join(shapes[one] for one in floats)})"] if floats else []
    read += [f'bytes_of("int64", {shapes[one]})' for one in guess.indices]
    elements = [f"math.prod({one})" for one in made]
    return {
        "name": name,
        "entry": entry,
        "source": source.name,
        "launcher": taken.name,
        "code": taken.code,
        "dimensions": dimensions,
        "size": size,
        "interpreted": repr({one: SIZES[one] for one in dimensions}).replace("'", '"'),
        "numbers": dict(numbers),
        "arguments": _tuple([f'"{one}"' for one in numbers]),
        "moved": " + ".join([*read, *(f"bytes_of({d}, {s})" for d, s in zip(fixed, made, strict=True))]),
        "operations": " + ".join(elements) or "1",
        "coarser": sorted({one.dtype for one in outputs if one.dtype in ("float16", "bfloat16")}),
        "dtypes": found.dtypes,
        "atol": max(16, 2 ** math.ceil(math.log2(4 * found.excess + 1))),
        "inputs": list(guess.shapes),
        "floats": floats,
        "shapes": [shapes[one] for one in floats],
        "indices": {one: shapes[one] for one in guess.indices},
        "outputs": [f"({shape}, {dtype})" for shape, dtype in zip(made, dtypes, strict=True)],
        "doubled": [one if one in guess.indices else f"{one}.double()" for one in guess.shapes],
        "definition": found.definition,
        "single": len(outputs) == 1,
        "is_tensor": found.is_tensor or not outputs,
        "picked": [f"found[{one.place}]" for one in outputs],
        "others": "".join(f"{one}: [{SIZES[one]}], " for one in dimensions if one != size),
        **dict(
            zip(
                ("smallest", "small", "large", "largest"),
                (SIZES[size], *(SIZES[size] * by for by in LARGER)),
                strict=True,
            )
        ),
    }


def _tuple(parts: Sequence[str]) -> str:
    return f"({', '.join(parts)}{',' * (len(parts) == 1)})"


def _dimension(size: int, dimensions: Sequence[str]) -> str:
    """Return a size of an output in terms of the problem's dimensions."""
    for count in range(1, len(dimensions) + 1):
        for some in itertools.combinations(dimensions, count):
            if math.prod(SIZES[one] for one in some) == size:
                return " * ".join(f"problem.{one}" for one in some)
    return str(size)


def _notes(
    taken: Launcher, guess: InputGuess, found: ProbeResult, unknown: Sequence[str], runs: bool
) -> Sequence[str]:
    """Return sentences about what was guessed, replaced and found, and about what the author fills in."""
    shapes = ", ".join(f"{name} ({', '.join(shape)})" for name, shape in guess.shapes.items())
    if not found.is_imported:
        return [
            f"The inputs {shapes} are a guess that was not tried: without a GPU the code fails when it is "
            f"imported: {found.error}.",
            "Write inputs and outputs into reference.py, and the definition into torch.py.",
        ]
    notes = [f"It takes {taken.name} with the inputs {shapes}: reference.py makes them."]
    if taken.replaced:
        lines = ", ".join(map(str, sorted(set(taken.replaced))))
        notes.append(f"Queries of the GPU have another value without a GPU (lines {lines} of the sources).")
    notes += [
        f"No value of {name} can be guessed, so it is None: write it into triton.py." for name in unknown
    ]
    if not runs:
        notes.append(f"With these inputs the launcher fails in Triton's interpreter: {found.error}.")
        notes.append("Write inputs and outputs into reference.py, and the definition into torch.py.")
        return notes
    copied = "so triton.py passes a copy, and its time includes the copying"
    notes += [f"It overwrites {name}, {copied}." for name in found.changed]
    if found.definition is not None:
        notes.append(
            f"In Triton's interpreter it agrees with {found.definition}, the definition in torch.py."
        )
    else:
        notes.append("It runs in Triton's interpreter. Write its definition into torch.py.")
    return notes
