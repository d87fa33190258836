"""Ledgers whose lines were edited by accident or with intent to harm.

``lines`` is a Hypothesis strategy for a ledger's lines. ``KNOWN`` holds lines that once stopped a stage.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from kernel_pipeline.errors import UserError
from kernel_pipeline.records.base import digest
from kernel_pipeline.records.measurement import Measurement, Parts
from kernel_pipeline.records.point import Point
from pipeline.store import provenance
from pipeline.store.provenance import RunProvenance
from pipeline.store.rows import Reader, UnknownRunError, encode
from tests import factory

ESCAPE, SCRIPT, MARKUP = "\x1b]0;owned\x07\x1b[2J", "<script>alert(1)</script>", "[/x]"

TEXTS = (
    *("", " ", ESCAPE, SCRIPT, MARKUP, "[bold]", "\ud800", "\x00", "a|b", "`a`", "[a](javascript:b)"),
    *("![a](https://example.com/a.png)", "$\\frac{", "&#60;script&#62;", "--> ]]>", "\u202eevil", "\ufffe"),
    *("../../escaped", "/etc/passwd", "..", ".", "a/b", "a'b", "_a", "=1+1", "x" * 10_000, "\n\n# A title\n"),
    *("0001-01-01T00:00:00Z", "2026-01-01T00:00:00", "9999-12-31T23:59:59-23:59", "softmax", "ok", "true"),
)
NUMBERS = (
    *(0, -1, 1, 2**31, 2**53 + 1, 2**63 - 1, 2**63, -(2**63), 10**400),
    *(float("nan"), float("inf"), float("-inf"), -0.0, -5.0, 1e-300, 5e-324, 1e-3, 1e12, 1e24, 1e300),
)
OTHERS: tuple[Any, ...] = (None, True, False, [], {}, [1], {"a": 1}, [None] * 3)

VALUES = st.sampled_from([*TEXTS, *NUMBERS, *OTHERS]) | st.text(max_size=20) | st.floats() | st.integers()

GARBAGE = (
    *(b"", b"NaN", b"null", b"[]", b"{}", b"\xff\xfe", b"\x00" * 50, b'{"a":' * 500 + b"1" + b"}" * 500),
    *(b"[" * 200_000, b'{"a":' * 100_000, b'"\\ud800"', b"1" * 5000, b"\x1b[2J", b"\r"),
)


def rows_of(gpu: str = factory.H200, kernel: str = "softmax") -> list[Measurement]:
    """Return measurements that together hold a value for nearly every field."""
    return [
        factory.measurement(kernel, "torch", 1024, gpu=gpu),
        factory.measurement(kernel, "torch", 4096, "bfloat16", gpu=gpu, valid=False),
        factory.measurement(kernel, "triton_online", 4096, gpu=gpu),
        factory.measurement(kernel, "cuda", 1024, gpu=gpu, status="runtime_error", error="why"),
        factory.measurement(kernel, "quack", 1024, gpu=gpu, workload="few_rows", rows=1),
    ]


def base(gpu: str = factory.H200, kernel: str = "softmax") -> list[dict[str, Any]]:
    """Return the same measurements as the lines of a ledger."""
    return [json.loads(encode(row)) for row in rows_of(gpu, kernel)]


def places(value: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the path of every value in a line."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for name, inner in items:
        yield (*at, name)
        yield from places(inner, (*at, name))


def changed(line: dict[str, Any], at: tuple[Any, ...], value: Any, *, name: bool = False) -> dict[str, Any]:
    """Return the line with another value at a path, or with the value as the field's new name. Key and
    rates are corrected, as a person who edits a line can do."""
    made: dict[str, Any] = json.loads(json.dumps(line))
    *way, last = at
    inner = made
    for part in way:
        inner = inner[part]
    if name and isinstance(inner, dict):
        inner[str(value)] = inner.pop(last)
    else:
        inner[last] = value
    return consistent(made)


def consistent(line: dict[str, Any]) -> dict[str, Any]:
    """Return the line with the right key for its point, if it has a point."""
    try:
        shared = rows_of()[0].parts
        parts = {**line["parts"], "measurement": shared.measurement, "settings": shared.settings}
        point = Point.from_dict(line["point"])
        line["key"] = Parts(point=digest(point.to_dict()), **parts).key
    except (KeyError, TypeError, ValueError):
        pass
    return line


def encoded(line: dict[str, Any]) -> bytes:
    """Return a line as JSON, which may contain ``Infinity`` and lone surrogates."""
    return json.dumps(line).encode()


@st.composite
def lines(draw: st.DrawFn, gpu: str = factory.H200, kernel: str = "softmax") -> list[bytes]:
    """Draw lines of a ledger: unchanged lines, edited lines and garbage."""
    found = []
    for whole in base(gpu, kernel):
        edited = whole
        for _ in range(draw(st.integers(0, 2))):
            at = draw(st.sampled_from(list(places(edited))))
            edited = changed(edited, at, draw(VALUES), name=draw(st.integers(0, 4)) == 0)
        found.append(encoded(edited))
    return [*found, draw(st.sampled_from(GARBAGE))]


def _timed(**changes: Any) -> bytes:
    line = base()[0]
    line["outcome"]["timing"].update(changes)
    return encoded(consistent(line))


def _at(*at: str, value: Any) -> bytes:
    return encoded(changed(base()[0], at, value))


def in_time(line: dict[str, Any], us: float) -> bytes:
    """Return the line with all times set to this one."""
    made: dict[str, Any] = json.loads(json.dumps(line))
    names = ("median_us", "p20_us", "p80_us", "min_us")
    made["outcome"]["timing"].update({**dict.fromkeys(names, us), "samples_us": [us] * 20})
    return encoded(consistent(made))


INFINITE = float("inf")
TIMES = {"nan": float("nan"), "infinite": INFINITE, "zero": 0, "minus": -5, "tiny": 1e-300, "huge": 1e300}
"""Times that no call can take."""


KNOWN = {
    **{name: in_time(base()[0], us) for name, us in TIMES.items()},
    "a googol": _timed(n_samples=10**400),
    "not in order": _timed(p20_us=1e6),
    "another rate": encoded(base()[0] | {"rate": base()[0]["rate"] | {"gbps": 1e6}}),
    "another point's key": encoded(base()[0] | {"point": base()[1]["point"]}),
    "a problem of 400 digits": _at("point", "problem", "columns", value=10**400),
    "a surrogate": _at("point", "problem", "dtype", value="\ud800"),
    "an escape": _at("point", "problem", "dtype", value=ESCAPE),
    "a provider with markup": _at("point", "provider", value=MARKUP),
    "a workload that is a path": _at("workload", value="../../escaped"),
    "a kernel that is a path": _at("point", "kernel", value="../../escaped"),
    "another kernel": _at("point", "kernel", value="gelu"),
    "year 1": _at("measured_at", value="0001-01-01T00:00:00Z"),
    "no time zone": _at("measured_at", value="2026-01-01T00:00:00"),
    "nested deeply": b'{"key":' * 500 + b"1" + b"}" * 500,
    "nested deeper": b"[" * 200_000,
    "infinity in a field": _at("outcome", "state", "power_w", value=float("inf")),
}
"""Lines that a reader skips with a sentence, by their fault."""

SHOWN = {
    "an error": encoded(
        base()[3] | {"outcome": base()[3]["outcome"] | {"error": f"{ESCAPE} {SCRIPT} {MARKUP}"}}
    ),
    "a reason": encoded(
        base()[1]
        | {
            "outcome": base()[1]["outcome"]
            | {"state": base()[1]["outcome"]["state"] | {"invalid_reason": f"{ESCAPE} {SCRIPT} {MARKUP}"}}
        }
    ),
    "a dtype": encoded(changed(base()[2], ("point", "problem", "dtype"), f"{SCRIPT} {MARKUP} $\\frac{{")),
}
"""Lines that are shown as text and have no other effect."""


def write(path: Path, some: list[bytes]) -> None:
    """Write a file of these lines. Beside a ledger, also write the provenance of the runs that the lines
    name."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"\n".join(some) + b"\n")
    if path.parent.parent.name == "timings":
        factory.write_provenance(path, rows_of(path.stem, path.parent.name))


class AnyRun(dict[str, RunProvenance]):
    """A mapping that returns the run of the first row for every run id."""

    def get(self, run: str, default: Any = None) -> RunProvenance:
        """Return the provenance of that run."""
        first = rows_of()[0]
        return provenance.run_of(first.origin, first.parts, first.point.kernel)


def is_measurement(line: bytes) -> bool:
    """Return whether the line is a valid measurement."""
    try:
        Reader(Path("ledger"), Measurement, AnyRun()).row(line)
    except (ValueError, TypeError, RecursionError, UserError, UnknownRunError):
        return False
    return True
