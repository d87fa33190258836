"""Find out by Triton's interpreter which inputs a launcher takes, and what it returns.

``python -m pipeline.points.launcher_probe FILE`` reads guesses of inputs as JSON, calls ``probe`` of the file
with each guess in a process of its own, and prints what it found.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from msgspec import convert

from kernel_pipeline.records.base import Record

from .. import ROOT
from .launcher_file import Launcher, LauncherParameter

SIZES = {"elements": 1000, "batch": 2, "heads": 3, "rows": 24, "columns": 128, "m": 128, "k": 192, "n": 256}
"""The sizes of the guesses' dimensions."""

FLOATS = {"eps": 1e-5, "epsilon": 1e-5, "scale": 1.0, "sm_scale": 0.5, "softmax_scale": 0.5, "alpha": 1.0}
"""Values of floating-point parameters, by name."""

LAST = re.compile(r"w|b|weights?|bias|gamma|beta|\w+_(weight|bias)", re.IGNORECASE)
"""Names of tensors with one element for each column."""

INDEX = re.compile(r"_?(targets?|labels?|indices|index|idx|ids)", re.IGNORECASE)
"""Names of tensors of indices below the number of columns, one for each row."""

DEFINITIONS = (
    (r"log_?softmax", ("torch.log_softmax({0}, -1)",)),
    (r"softmax", ("torch.softmax({0}, -1)",)),
    (r"rms_?(layer_?)?norm", ("F.rms_norm({0}, {0}.shape[-1:], {1}, {eps})",)),
    (r"layer_?norm", ("F.layer_norm({0}, {0}.shape[-1:], {1}, {2}, {eps})",)),
    (r"l2_?norm", ("{0} * torch.rsqrt(({0} * {0}).sum(-1, keepdim=True) + {eps})",)),
    (r"swiglu|silu_?mul", ("F.silu({0}) * {1}",)),
    (r"geglu|gelu_?mul", ('F.gelu({0}, approximate="tanh") * {1}', "F.gelu({0}) * {1}")),
    (r"cross_?entropy", ("F.cross_entropy({0}, {1})", 'F.cross_entropy({0}, {1}, reduction="none")')),
    (r"mat_?mul|b?mm\b|gemm", ("{0} @ {1}",)),
    (r"gelu", ('F.gelu({0}, approximate="tanh")', "F.gelu({0})")),
    (r"silu|swish", ("F.silu({0})",)),
    (r"relu|sigmoid|tanh", ("torch.relu({0})", "torch.sigmoid({0})", "torch.tanh({0})")),
    (r"add", ("{0} + {1}",)),
    (r"mul", ("{0} * {1}",)),
)
"""Definitions in torch, by words in the launcher's name."""

TIMEOUT_S = 120


class InputGuess(Record):
    """The dimensions of each input, by name; ``indices`` names the inputs that hold indices."""

    shapes: dict[str, tuple[str, ...]]
    indices: tuple[str, ...] = ()


class ProbeQuestion(Record):
    """The guesses, the floating-point arguments, and possible definitions as expressions of the inputs."""

    guesses: tuple[InputGuess, ...]
    numbers: dict[str, float]
    definitions: tuple[str, ...]


class LauncherOutput(Record):
    """A new tensor that a launcher returned: its place in the tuple, its shape, and its dtype, which is empty
    if it is the inputs' dtype."""

    place: int
    dtype: str
    shape: tuple[int, ...]


class ProbeResult(Record):
    """The result of a call: the outputs, whether the launcher returned one tensor, the inputs that it
    overwrote, and the definition with which the first output agrees. ``dtypes`` are the dtypes of inputs for
    which the call runs. ``excess`` is the largest error beyond four units in the last place, in units of
    float32's. ``error`` says why there is no result, and ``is_imported`` whether the import succeeded."""

    outputs: tuple[LauncherOutput, ...] = ()
    dtypes: tuple[str, ...] = ("float32",)
    is_imported: bool = True
    is_tensor: bool = False
    changed: tuple[str, ...] = ()
    definition: str | None = None
    excess: float = 0.0
    error: str | None = None


def arguments(launcher: Launcher) -> tuple[list[str], dict[str, float], list[str], list[str]]:
    """Return the names of the tensors among the required parameters, the floating-point arguments, the
    arguments of the call as code, and the parameters whose value can't be guessed."""
    tensors, numbers, written, unknown = list[str](), dict[str, float](), list[str](), list[str]()
    for one in launcher.parameters:
        if one.default is not None:
            continue
        code = one.name
        if re.search(r"Optional|None", one.annotation):
            code = "None"
        elif one.name in FLOATS:
            numbers[one.name] = FLOATS[one.name]
        elif one.name == "normalized_shape":
            code = f"{tensors[0]}.shape[-1:]" if tensors else "None"
        elif re.fullmatch(r"dim|axis", one.name):
            code = "-1"
        elif _is_plain(one):
            unknown.append(one.name)
            code = "None"
        else:
            tensors.append(one.name)
        written.append(code if launcher.is_positional else f"{one.name}={code}")
    return tensors, numbers, written, unknown


def _is_plain(one: LauncherParameter) -> bool:
    """Whether a parameter is no tensor, by its annotation or its name."""
    pattern = r"(num|n|is|use|has)_\w+|\w*(size|mode|dtype|shape|stride|reduction|count|offset|causal)|[MNKD]"
    return "Tensor" not in one.annotation if one.annotation else bool(re.fullmatch(pattern, one.name))


def guesses(tensors: Sequence[str]) -> Iterator[InputGuess]:
    """Yield guesses of the shapes of tensors, the most likely first."""
    indices = tuple(name for name in tensors if INDEX.fullmatch(name))
    last = {name for name in tensors[1:] if LAST.fullmatch(name)}

    def shaped(*first: str, rest: tuple[str, ...] | None = None) -> dict[str, tuple[str, ...]]:
        made = dict[str, tuple[str, ...]]()
        for place, name in enumerate(tensors):
            made[name] = first if rest is None or not place else rest
            if name in last and rest is None:
                made[name] = first[-1:]
            if name in indices:
                made[name] = first[:-1]
        return made

    every = [shaped("rows", "columns"), shaped("rows", "columns", rest=("rows", "columns"))]
    if len(tensors) > 1:
        every.append(
            dict.fromkeys(tensors, ("n",)) | dict(zip(tensors, (("m", "k"), ("k", "n")), strict=False))
        )
    every += [
        shaped("batch", "rows", "columns"),
        shaped("elements", rest=("elements",)),
        shaped("rows", "columns", rest=("columns",)),
        shaped("batch", "heads", "rows", "columns"),
    ]
    seen: list[dict[str, tuple[str, ...]]] = []
    for shapes in every:
        if shapes not in seen:
            seen.append(shapes)
            yield InputGuess(shapes=shapes, indices=indices)


def definitions(launcher: Launcher, stem: str, tensors: Sequence[str]) -> list[str]:
    """Return the definitions that the launcher's or the file's name suggests, as code."""
    eps = next(
        (one.default or one.name for one in launcher.parameters if one.name in ("eps", "epsilon")), "1e-5"
    )
    for name in (launcher.name, stem):
        for words, texts in DEFINITIONS:
            if re.search(words, name.replace("-", "_"), re.IGNORECASE):
                highest = max(int(place) for text in texts for place in re.findall(r"{(\d)}", text))
                return [text.format(*tensors, eps=eps) for text in texts] if highest < len(tensors) else []
    return []


def probe(
    code: str, tensors: Sequence[str], question: ProbeQuestion
) -> tuple[InputGuess | None, ProbeResult]:
    """Call a launcher with each guess, and return the first guess that agrees with a definition, or else the
    first that runs, with the result. ``code`` defines the function ``probe``. Without such a guess the result
    is that of the first guess."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "taken.py")
        path.write_text(code)
        done = subprocess.run(
            [sys.executable, "-m", __name__, str(path), *tensors],
            input=question.to_json(),
            env={**os.environ, "TRITON_INTERPRET": "1", "CUDA_VISIBLE_DEVICES": "", "PYTHONPATH": str(ROOT)},
            capture_output=True,
            check=False,
        )
    if done.returncode:
        lines = done.stderr.decode(errors="replace").strip().splitlines() or ["its process ended"]
        return None, ProbeResult(error=lines[-1].rstrip("."), is_imported=False)
    found = [convert(one, ProbeResult) for one in json.loads(done.stdout.splitlines()[-1])]
    pairs = list(zip(question.guesses, found, strict=False))
    right = [pair for pair in pairs if pair[1].definition is not None]
    runs = [pair for pair in pairs if pair[1].error is None]
    return (right or runs)[0] if right or runs else (None, found[0])


def main(path: str) -> None:
    """Answer a question."""
    from kernel_pipeline.execution import interpreter

    question = ProbeQuestion.from_json(sys.stdin.buffer.read())
    interpreter.mend()
    spec = importlib.util.spec_from_file_location("taken", path)
    assert spec is not None and spec.loader is not None, "a Python file"
    module = importlib.util.module_from_spec(spec)
    sys.modules["taken"] = module
    spec.loader.exec_module(module)
    answers = []
    for guess in question.guesses:
        answers.append(_apart(lambda guess=guess: _called(module.probe, guess, question)))
        if answers[-1].definition is not None:
            break
    print(json.dumps([one.to_dict() for one in answers]))


def _apart(call: Any) -> ProbeResult:
    """Return the result of a call in a process of its own, which a wrong guess may end."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        signal.alarm(TIMEOUT_S)
        with os.fdopen(writing, "wb") as file:
            try:
                made = call()
            except BaseException as error:
                made = ProbeResult(error=" ".join(f"{type(error).__name__}: {error}".split())[:300])
            file.write(made.to_json())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as file:
        answer = file.read()
    os.waitpid(child, 0)
    return (
        ProbeResult.from_json(answer) if answer else ProbeResult(error="its process crashed or took too long")
    )


def _called(launch: Any, guess: InputGuess, question: ProbeQuestion) -> ProbeResult:
    import torch
    from torch.nn import functional

    torch.manual_seed(0)
    inputs: dict[str, Any] = {}
    for name, shape in guess.shapes.items():
        sizes = [SIZES[one] for one in shape]
        if name in guess.indices:
            inputs[name] = torch.randint(SIZES["columns"], sizes)
        else:
            inputs[name] = torch.randn(sizes)
    before = {name: one.clone() for name, one in inputs.items()}
    made = launch(*inputs.values(), **question.numbers)
    fresh = _fresh(made, inputs)
    others = _in_dtypes(launch, before, question)
    if not fresh:
        return ProbeResult(error="it returns no new tensor")
    doubles = {name: one.double() if one.is_floating_point() else one for name, one in before.items()}
    names: Mapping[str, Any] = {"torch": torch, "F": functional, **question.numbers, **doubles}
    agrees, excess = None, 0.0
    first = fresh[0][1]
    for text in question.definitions:
        try:
            exact = eval(text, dict(names))
        except (RuntimeError, ValueError, IndexError):
            continue
        if exact.shape == first.shape:
            error = (first.double() - exact).abs()
            if bool((error <= 1e-2 * exact.abs() + 1e-3 * exact.abs().max()).all()):
                unit = torch.finfo(first.dtype).eps if first.is_floating_point() else 0.0
                excess = float((error - 4 * unit * exact.abs()).clamp(min=0).max()) / 2.0**-23
                agrees = text
                break
    return ProbeResult(
        outputs=tuple(
            LauncherOutput(place=place, dtype=_dtype(place, one.dtype, others), shape=tuple(one.shape))
            for place, one in fresh
        ),
        dtypes=("float32", *others),
        is_tensor=isinstance(made, torch.Tensor),
        changed=tuple(name for name, one in before.items() if not torch.equal(one, inputs[name])),
        definition=agrees,
        excess=excess,
    )


def _fresh(made: Any, inputs: Mapping[str, Any]) -> list[tuple[int, Any]]:
    """Return the tensors of a result that share no memory with an input, with their places."""
    import torch

    several = made if isinstance(made, (tuple, list)) else (made,)
    known = {one.untyped_storage().data_ptr() for one in inputs.values()}
    return [
        (place, one)
        for place, one in enumerate(several)
        if isinstance(one, torch.Tensor) and one.untyped_storage().data_ptr() not in known
    ]


def _in_dtypes(launch: Any, given: Mapping[str, Any], question: ProbeQuestion) -> dict[str, dict[int, str]]:
    """Return the dtypes of the outputs by their places, for each smaller dtype that the call takes."""
    import torch

    found: dict[str, dict[int, str]] = {}
    for dtype in (torch.bfloat16, torch.float16):
        inputs = {
            name: one.to(dtype) if one.is_floating_point() else one.clone() for name, one in given.items()
        }
        with suppress(Exception):
            fresh = _fresh(launch(*inputs.values(), **question.numbers), inputs)
            found[_name(dtype)] = {place: _name(one.dtype) for place, one in fresh}
    return found


def _dtype(place: int, dtype: Any, others: Mapping[str, Mapping[int, str]]) -> str:
    """Return an output's dtype, or an empty text if it follows the inputs' dtype."""
    name = _name(dtype)
    follows = name == "float32" and all(made.get(place) == given for given, made in others.items())
    return "" if follows else name


def _name(dtype: Any) -> str:
    return str(dtype).removeprefix("torch.")


if __name__ == "__main__":
    main(sys.argv[1])
