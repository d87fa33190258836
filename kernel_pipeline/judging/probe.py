"""Run a problem's own module, and write its facts.

``facts.Prober`` starts the process, ``python -m kernel_pipeline.judging.probe PARENT FD``, which answers each
``Probe``.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cache
from io import BytesIO
from math import inf
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch

from .. import problems, tracebacks
from ..arguments import structure, tensors_of
from ..checking import tolerance_for, wide
from ..contract import Tolerance
from ..execution.faults import failed
from ..execution.message_connection import receive, serve
from ..execution.protocol import Done, Setup
from ..execution.shared_memory import memory_available
from ..files import write_atomically
from ..loading import Tensors
from ..machine.reaper import die_with
from ..records.base import Record, Values
from ..verification import compare
from . import folder as files
from .facts import FILE, AllFacts, Layout, Probe, ProblemFacts, all_facts, facts_of, key
from .formats import UnfitError
from .imported import DISTRIBUTION, REFERENCE, read
from .running import Reference

ERRORS = 8.0
"""An output's tolerance is the usual one of its dtype plus this many times the largest error of the problem's
own module. A long sum in another order has errors of this size."""

ALIKE = 4.0
"""Two answers to the same inputs count as random if they differ by more than this many times the usual
tolerance of their dtype."""

COPIES = 12
"""The memory that all processes need together, as a multiple of the bytes of a problem's inputs."""


def main(parent: int, fd: int) -> None:
    """Answer probes until the other end closes."""
    die_with(parent)
    connection = Connection(fd)
    receive(connection, Setup)

    def answer(request: Record) -> Record:
        assert isinstance(request, Probe), "no other request is received"
        try:
            answer_to(request)
        except Exception as error:  # whatever the problem's code raises
            return failed(error)
        return Done()

    serve(connection, answer, Probe)


def answer_to(probe: Probe) -> None:
    """Write the facts of a probe's problems, or the file that it asks for."""
    if probe.save is not None:
        save(probe, probe.save)
        return
    path = probe.folder / FILE
    known = AllFacts.from_json(path.read_bytes()).of if path.exists() else {}
    for values in probe.problems:
        try:
            known[key(values)] = facts(probe, values)
        except UnfitError as error:
            known[key(values)] = ProblemFacts(skipped=str(error))
        except torch.OutOfMemoryError:
            known[key(values)] = ProblemFacts(
                skipped="its own code runs out of memory here: write a smaller scale="
            )
        except Exception as error:  # whatever the problem's code raises
            said = tracebacks.described(error, [probe.folder])
            known[key(values)] = ProblemFacts(skipped=f"its own code fails: {said.splitlines()[0]}")
    write_atomically(path, AllFacts(of=known).to_json(indent=1))
    all_facts.cache_clear()


def facts(probe: Probe, values: Values) -> ProblemFacts:
    """Return the facts of a problem.

    Raises UnfitError if its answer is random or not finite, or if its inputs are too large for this machine,
    and whatever the problem's code raises.
    """
    problem, device = _problem(probe, values), torch.device(probe.device)
    dimensions = Values({name: value for name, value in values.items() if name != DISTRIBUTION})
    reference, call = _own(probe.folder, dimensions, device)
    assert reference.facts is not None, "_own sets the facts"
    tensors = reference.inputs(problem, device, probe.seed)
    _check_room(tensors, device)
    made, other = (call(*(x.clone() for x in tensors)) for _ in range(2))
    outputs, again = tensors_of(made), tensors_of(other)
    if not outputs:
        raise UnfitError("its own code returns no tensor")
    right = None
    if reference.imported.has_answer:
        right = _right(reference, tensors, dimensions, values[DISTRIBUTION] == files.GIVEN, probe.folder)
    if values[DISTRIBUTION] in files.SPECIAL:
        if right is None or reference.facts.inexact is not None:
            raise UnfitError("no answer in float64 says where the answer is NaN or infinite")
        if not all(map(_is_special_alike, outputs, right)):
            raise UnfitError("its own code is NaN or infinite at other places than the same code in float64")
    elif not all(bool(wide(x).isfinite().all()) for x in (*outputs, *(right or ()))):
        raise UnfitError("its answer is not finite")
    layouts = {"inputs": tuple(map(_layout, tensors)), "outputs": tuple(map(_layout, outputs))}
    found = reference.facts.replace(**layouts, structure=structure(made))
    if right is None:
        return found
    for out, other, want in zip(outputs, again, right, strict=True):
        usual = tolerance_for(out, want)
        if compare(other, out, out.dtype, Tolerance(ALIKE * usual.rtol, ALIKE * usual.atol)).error:
            raise UnfitError("its answer is random: the same inputs give another answer")
    if values[DISTRIBUTION] == files.OWN_CHECK:
        own = (reference.code.own_tolerance(out.dtype) for out in outputs)
        return found.replace(tolerances=tuple((one, one) for one in own))
    flushed = reference.answer(tuple(map(_flushed, tensors)), dimensions)
    if reference.imported.has_checker:
        right = reference.nearest(outputs, right, tensors, problem)
    tolerances = [_tolerance(*of, found.inexact is None) for of in zip(outputs, right, flushed, strict=True)]
    return found.replace(tolerances=tuple((one.rtol, one.atol) for one in tolerances))


def _right(
    reference: Reference, tensors: Tensors, dimensions: Values, is_given: bool, folder: Path
) -> Tensors:
    """Return the right outputs. If the problem has a checker, its code may give the answer as it is where it
    does not run in float64; the given inputs decide on this for the workload."""
    try:
        return reference.answer(tensors, dimensions)
    except Exception as error:  # its code may require float32
        said = f"its own code does not run in float64: {tracebacks.described(error, [folder])}"
        said = said.splitlines()[0]
        if not reference.imported.has_checker or not is_given or reference.facts is None:
            raise UnfitError(said) from error
    reference.facts = reference.facts.replace(inexact=said)
    return tuple(map(wide, reference.answer(tensors, dimensions)))


def _check_room(tensors: Sequence[torch.Tensor], device: torch.device) -> None:
    needed = COPIES * sum(x.nbytes for x in tensors)
    if needed > memory_available(device):
        raise UnfitError(f"its inputs need about {needed / 1e9:.0f} GB here: write a smaller scale=")


@cache
def _own(folder: Path, dimensions: Values, device: torch.device) -> tuple[Reference, Callable[..., Any]]:
    """Return the reference of a workload, and the function of the problem's own code."""
    reference = Reference(folder)
    code, imported = reference.code, reference.imported
    sizes = imported.plain(dimensions)
    shapes: Tensors = ()
    with suppress(Exception):  # some code does not run on ``meta``
        shapes, _ = code.inputs(sizes, torch.device("meta"), 0, ())
    _check_room(shapes, device)
    reference.facts = ProblemFacts(mode=code.mode(sizes, device), learned=code.learn(sizes, device))
    return reference, code.call(imported.modules[REFERENCE], sizes, device, reference.facts.learned)


def save(probe: Probe, path: Path) -> None:
    """Write the inputs of a problem, its weights by name, and the right answer, for ``torch.load``."""
    (values,) = probe.problems
    problem, reference = _problem(probe, values), Reference(probe.folder)
    given, weights = reference.parts(problem, torch.device(probe.device), probe.seed)
    dimensions = {name: value for name, value in values.items() if name != DISTRIBUTION}
    names = facts_of(probe.folder, {**dimensions, DISTRIBUTION: files.GIVEN}).learned if weights else ()
    saved: dict[str, Any] = {
        "problem": dict(values),
        "seed": probe.seed,
        "inputs": [x.cpu() for x in given],
        "weights": {name: x.cpu() for name, x in zip(names, weights, strict=True)},
        "right": [x.cpu() for x in reference.answer((*given, *weights), dimensions)],
    }
    content = BytesIO()
    torch.save(saved, content)
    write_atomically(path, content.getvalue())


def _problem(probe: Probe, values: Values) -> Any:
    return problems.make(files.problem_type(read(probe.folder)), values)


def _layout(x: torch.Tensor) -> Layout:
    return tuple(x.shape), tuple(x.stride()), str(x.dtype).removeprefix("torch.")


def _tolerance(out: torch.Tensor, right: torch.Tensor, flushed: torch.Tensor, is_exact: bool) -> Tolerance:
    """Return the tolerance of an output: the sum of the usual tolerance of its dtype, the errors of the
    problem's own code, and the difference that denormal inputs make, because a GPU may flush them to zero.
    The errors are unknown if the right answer is not exact; then the tolerance is a multiple of the usual."""
    usual = tolerance_for(out, right)
    if not out.is_floating_point() or not out.numel():
        return usual
    finite = right.isfinite()
    own, denormal = ((x.double() - right).abs().where(finite, 0.0).max().item() for x in (out, flushed))
    units = 1.0 if is_exact else ERRORS
    return Tolerance(units * usual.rtol, units * usual.atol + ERRORS * own + denormal)


def _is_special_alike(out: torch.Tensor, right: torch.Tensor) -> bool:
    """Whether NaN and infinities are at the same places of two answers."""
    if not out.is_floating_point() and not out.is_complex():
        return True
    marks = [
        [x.isnan(), x == inf, x == -inf]
        for x in (torch.view_as_real(x) if x.is_complex() else x for x in (wide(out), right))
    ]
    return all(map(torch.equal, *marks))


def _flushed(x: torch.Tensor) -> torch.Tensor:
    """Return a tensor with zeros in place of denormal numbers. Few operations support 8-bit floats."""
    if not x.is_floating_point() or x.itemsize == 1:
        return x
    return x.where(~(x.abs() < torch.finfo(x.dtype).tiny), 0.0)  # keeps NaN


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
