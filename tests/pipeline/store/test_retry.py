import pytest

from kernel_pipeline.records.measurement import Measurement, Outcome
from pipeline.store import retry
from tests import factory


def failure(status: str, error: str, attempts: int = 1) -> Measurement:
    row = factory.measurement(status="timeout")
    outcome = Outcome.from_dict({"status": status, "error": error})
    return row.replace(outcome=outcome, attempts=attempts)


@pytest.mark.parametrize(
    ("status", "error", "passes"),
    [
        ("timeout", "no answer in 120 s; its worker was replaced", True),
        ("out_of_memory", "needs about 40 GB for inputs and reference; 3 GB are free", True),
        ("out_of_memory", "CUDA out of memory", True),
        ("runtime_error", "the worker was killed by SIGKILL", True),
        ("runtime_error", "the worker exited with 1: Fatal Python error", True),
        ("runtime_error", "the verifier was killed by SIGTERM", True),
        ("runtime_error", "the judge was killed by SIGTERM", True),
        ("runtime_error", "RuntimeError: the worker was killed by SIGKILL", False),
        ("runtime_error", "ValueError: no", False),
        ("compile_error", "cuda.cu does not compile", False),
        ("incorrect", "first call: 3 of 8 elements are wrong", False),
        ("incorrect", "timed at 5 us, but from outside calls on new inputs took 7 us each", True),
        ("runtime_error", "timed at", False),
    ],
)
def test_what_may_pass_is_due_until_three_runs_have_tried(status: str, error: str, passes: bool) -> None:
    for attempts in (1, 2, 3, 4):
        row = failure(status, error, attempts)
        assert retry.is_due(row, "passing") == (passes and attempts < 3)
        assert retry.is_due(row, "failed")


def test_what_is_right_is_never_due() -> None:
    for status in ("ok", "verified"):
        assert not retry.is_due(factory.measurement(status=status), "failed")
        assert not retry.is_due(factory.measurement(status=status), "passing")
