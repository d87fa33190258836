"""Write verdicts as traces in flashinfer-bench's format, which its tools read.

A trace is a line of JSON: the names of a definition and of a solution, a workload, and an evaluation. The
format has a time for each right answer and none for wrong ones. So a solution that is right and has no time,
and one that can't be judged, have no trace.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from importlib import metadata
from typing import Any, cast

from msgspec import to_builtins

from kernel_pipeline.judging.definition import WORKLOAD
from kernel_pipeline.judging.flashinferbench import FlashInferProblem, SolutionFile
from kernel_pipeline.judging.formats import SubmissionFile
from kernel_pipeline.judging.imported import DISTRIBUTION
from kernel_pipeline.machine.device import Device
from kernel_pipeline.records.base import Values

from .judged import Judged, Judgement, Verified

STATUSES = {
    **{"runtime_error": "RUNTIME_ERROR", "out_of_memory": "RUNTIME_ERROR"},
    **{"compile_error": "COMPILE_ERROR", "timeout": "TIMEOUT"},
}
"""The format's status of a failure."""

NUMERICAL = "INCORRECT_NUMERICAL"

OTHERS = {"shape is ": "INCORRECT_SHAPE", "dtype is ": "INCORRECT_DTYPE"}
"""The format's status of a wrong answer whose error has these words, in place of ``NUMERICAL``."""

LIBRARIES = ("torch", "triton")


def traces(
    problem: FlashInferProblem, files: Mapping[str, SubmissionFile], found: Judgement, device: Device
) -> bytes:
    """Return the traces of the solutions. ``files`` are the submissions in the order of the verdicts."""
    shared = {
        "environment": {
            "hardware": device.name,
            "libs": {name: metadata.version(name) for name in LIBRARIES},
        },
        "timestamp": found.at.isoformat(),
    }
    made = [
        {
            "definition": problem.name,
            "workload": _source(problem, workload),
            "solution": file.solution,
            "evaluation": shared | evaluation,
        }
        for file, one in zip(files.values(), found.results, strict=True)
        if isinstance(file, SolutionFile)
        for workload, evaluation in _evaluations(one)
    ]
    return "".join(json.dumps(one) + "\n" for one in made).encode()


def _evaluations(one: Judged) -> Iterator[tuple[Values, dict[str, Any]]]:
    """Yield the problems of a solution's traces, with the evaluations: those at which a right solution was
    timed, and the one at which a wrong solution failed."""
    if one.verdict == "correct":
        given = {_workload(each.problem): each for each in reversed(one.verified)}
        for timed in one.timed:
            performance = {
                "latency_ms": timed.us / 1e3,
                "reference_latency_ms": timed.reference_us / 1e3,
                "speedup_factor": timed.reference_us / timed.us,
            }
            errors = _correctness(given[timed.workload])
            yield timed.workload, {"status": "PASSED", "correctness": errors, "performance": performance}
    elif one.verdict != "can't be judged" and one.verified:
        last, log = one.verified[-1], f"{one.verdict}: {one.reason}"
        status = STATUSES.get(last.status) or next(
            (OTHERS[word] for word in OTHERS if word in log), NUMERICAL
        )
        correctness = {"correctness": _correctness(last)} if status == NUMERICAL else {}
        yield _workload(last.problem), {"status": status, "log": log, **correctness}


def _workload(problem: Values) -> Values:
    return Values({name: value for name, value in problem.items() if name != DISTRIBUTION})


def _correctness(one: Verified) -> dict[str, float | str]:
    """Return the largest errors; they are unknown for outputs that were not compared."""
    errors = {"max_relative_error": one.max_rel_err, "max_absolute_error": one.max_abs_err}
    return {name: "NaN" if error is None else error for name, error in errors.items()}


def _source(problem: FlashInferProblem, workload: Values) -> dict[str, Any]:
    """Return a workload in the format. Another uuid tells a workload with changed sizes from the file's."""
    one = problem.workloads[str(workload[WORKLOAD])]
    axes = {name: cast("int", workload[name]) for name in one.axes}
    changed = [f"{name}={size}" for name, size in axes.items() if size != one.axes[name]]
    made: dict[str, Any] = to_builtins(one.replace(axes=axes, uuid=" ".join((one.uuid, *changed))))
    return made
