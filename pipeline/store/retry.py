"""Decide which failures are temporary, so that the next run tries their points again, and which are final."""

from __future__ import annotations

from typing import Literal

from kernel_pipeline.records.measurement import Measurement, Outcome

MOST_ATTEMPTS = 3
"""The maximum number of runs that try a point whose failure may pass."""

ENDED = ("the worker ", "the verifier ", "the judge ")
"""The start of a point's error if its worker or verifier ended without an answer; older rows name the
verifier "the judge". The error of an exception starts with the exception's name."""

TOO_SHORT = "timed at "
"""The start of a point's error if its audit found the time too short."""

Retry = Literal["passing", "failed"]
"""The failures that are tried again: temporary failures, or all."""


def has_failed(row: Measurement) -> bool:
    """Whether the point has no right output, as far as this machine can tell."""
    return row.outcome.status not in ("ok", "verified", "not_judged")


def may_pass(outcome: Outcome) -> bool:
    """Whether the failure may be due to the machine's state at that moment: too little memory, no time, a
    killed process, or a host too busy for the audit of a short time. A wrong output, a compiler error and an
    exception of the provider are final."""
    status, error = outcome.status, outcome.error or ""
    has_ended = status == "runtime_error" and error.startswith(ENDED)
    return status in ("timeout", "out_of_memory") or has_ended or is_too_short(outcome)


def is_too_short(outcome: Outcome) -> bool:
    """Whether the outputs were right, and the audit found the time too short."""
    return outcome.status == "incorrect" and (outcome.error or "").startswith(TOO_SHORT)


def is_due(row: Measurement, retry: Retry) -> bool:
    """Whether the point of a row is measured again."""
    if retry == "failed":
        return has_failed(row)
    return may_pass(row.outcome) and row.attempts < MOST_ATTEMPTS
