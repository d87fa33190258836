"""Which failures may pass, so that the next run tries their points again, and which are known for good."""

from __future__ import annotations

from typing import Literal

from kernel_pipeline.records.measurement import Measurement

MOST_ATTEMPTS = 3
"""So many runs try a point that fails each time in a way that may pass."""

ENDED = ("the worker ", "the verifier ", "the judge ")
"""How the error begins of a point whose worker or verifier ended without an answer; older
rows say judge. That of an exception begins with the name of the exception."""

Retry = Literal["passing", "failed"]
"""What is tried again: the failures that may pass, or all."""


def has_failed(row: Measurement) -> bool:
    """Whether the point has no right output, as far as this machine can tell."""
    return row.outcome.status not in ("ok", "verified", "not_judged")


def may_pass(row: Measurement) -> bool:
    """Whether the failure may be the machine's of that moment: too little memory, no time, a process that was
    killed. A wrong output, a compiler's error and an exception of the provider's come again."""
    status, error = row.outcome.status, row.outcome.error or ""
    return status in ("timeout", "out_of_memory") or (status == "runtime_error" and error.startswith(ENDED))


def is_due(row: Measurement, retry: Retry) -> bool:
    """Whether a point of which this is known is measured again."""
    if retry == "failed":
        return has_failed(row)
    return may_pass(row) and row.attempts < MOST_ATTEMPTS
