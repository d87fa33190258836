"""Select the measured points that a command line asks for."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from kernel_pipeline.records.point import Point
from pipeline.points.catalog import Entry
from pipeline.points.plan import Pins, checked_pins
from pipeline.points.problems import SIZE


def asked(entry: Entry, pins: Pins, providers: Sequence[str] | None) -> Callable[[Point], bool]:
    """Return a predicate for points of these providers (None: all) that have the pinned values. As in a
    sweep, a pin of a parameter binds only the providers that have it. Raises UserError for names and values
    that the kernel does not have."""
    kernel = entry.loaded.kernel
    dimensions = kernel.dimensions()
    wanted = checked_pins(entry, pins, providers)
    sizes = wanted.pop(SIZE, None)
    if sizes is not None:
        wanted |= {name: sizes for name in kernel.size if name not in wanted}

    def fits(point: Point) -> bool:
        values = {name: variable.default for name, variable in dimensions.items()}
        values |= {**point.problem, **point.parameters}
        of_provider = providers is None or point.provider in providers
        return of_provider and all(values[name] in some for name, some in wanted.items() if name in values)

    return fits
