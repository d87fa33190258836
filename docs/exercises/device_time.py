"""Read the device time of a call from a profiler's table.

The table of torch.profiler has a row for each operator and one for each kernel. `self_device_us` of an
operator is the time of the kernels that it launched, and the kernels have rows of their own with the same
time. Three calls were recorded. Return the microseconds of device time of one call. The tables come
from this repository's results.
"""

from __future__ import annotations

from typing import Any

from docs.exercises._rows import rows

CALLS = 3


def yours(table: list[dict[str, Any]]) -> float:
    """Add up a table. Its rows have name, calls, cpu_us, self_cpu_us, device_us, self_device_us."""
    # YOURS: return the device time of one call in microseconds.
    kernels = [row for row in table if row["cpu_us"] == 0]
    return sum(row["self_device_us"] for row in kernels) / CALLS
    # END


def expected(table: list[dict[str, Any]]) -> float:
    """Return the sum over the kernels' events of the trace."""
    return next(float(row["device_us"]) for row in rows("profile") if row["operators"] == table)


def cases():
    """Tables of the formulas as torch's operators compute them, on GPUs."""
    for row in rows("profile"):
        if row["point"]["provider"] == "manual":
            yield (row["operators"],)


TOLERANCE = 0.01

TOPIC, STEP = "Reading profiles", 3

MISTAKE = """
kernels = [row for row in table if row["self_device_us"] > 0]
return sum(row["self_device_us"] for row in kernels) / CALLS
"""

HINTS = (
    "Print the table: for row in table: print(row). Which rows have the same device time?",
    "Count either the operators or the kernels. A kernel does not run on the CPU.",
    "Kernels are the rows with cpu_us == 0. The table counts three calls.",
)
