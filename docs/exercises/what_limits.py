"""Name the limit of a kernel by two percentages of ncu.

ncu gives the throughput of the busiest unit of memory and of compute, as a share of its peak. From these two
numbers ncu's rule finds the limit of a kernel. Reproduce the rule's verdict: "near the peak" if one of the
two reaches 80 %, "latency" if neither reaches 60 %, else "memory" or "compute". The cases are kernels of this
repository, as counted on an H100 and an H200.
"""

from __future__ import annotations

from docs.exercises._rows import rows


def yours(memory: float, compute: float) -> str:
    """Judge by the two percentages."""
    # YOURS: return "near the peak", "latency", "memory" or "compute".
    busiest = max(memory, compute)
    if busiest >= 80:
        return "near the peak"
    if busiest < 60:
        return "latency"
    return "memory" if memory > compute else "compute"
    # END


SENTENCES = {
    "greater than 80.0% of the available": "near the peak",
    "low compute throughput and memory bandwidth": "latency",
    "Memory is more heavily utilized": "memory",
    "Compute is more heavily utilized": "compute",
}
"""Parts of the sentences of ncu's rule, with the verdicts that they mean."""


def verdict(row: dict) -> str | None:
    """Return the verdict of ncu's rule on a kernel, or None if the rule says something else."""
    text = next((rule["text"] for rule in row["rules"] if rule["name"] == "SOLBottleneck"), "")
    return next((said for part, said in SENTENCES.items() if part in text), None)


def expected(memory: float, compute: float) -> str:
    """Return ncu's verdict on the kernel with these percentages."""
    return next(
        said
        for row in rows("counters")
        if (row["memory_throughput_pct"], row["compute_throughput_pct"]) == (memory, compute)
        and (said := verdict(row))
    )


def cases():
    """All kernels that were counted and that the rule judges."""
    for row in rows("counters"):
        if verdict(row):
            yield row["memory_throughput_pct"], row["compute_throughput_pct"]


TOPIC, STEP = "Reading profiles", 1

MISTAKE = """
if max(memory, compute) >= 80:
    return "near the peak"
return "memory" if memory > compute else "compute"
"""

HINTS = (
    "Look at the larger of the two first.",
    "A kernel that uses neither to 60 % waits: for memory's answer, for a barrier, for its launch.",
    "busiest = max(memory, compute); then three comparisons.",
)
