"""Draw problems at random that no table was tuned for: the shapes of real models, and odd numbers between.

A kernel's YAML lists under ``drawn`` the values of each dimension, or a span. A number of a span is drawn
log-uniformly, since a problem twice as large is as likely as one half as large.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import islice
from math import exp, log
from typing import Any

from kernel_pipeline import problems
from kernel_pipeline.declared import Value
from kernel_pipeline.errors import UserError

from .catalog import Entry, Span

MOST = {"cuda": (2**32, 2**43), "cpu": (2**22, 2**30)}
"""The bytes and operations of the largest problems that are drawn, by kind of device: larger problems take
seconds to verify."""

TRIES = 1000
"""The maximum number of draws for one problem."""


def draw(entry: Entry, kind: str, seed: int, count: int) -> list[Any]:
    """Return ``count`` different problems of a kernel for a kind of device. A larger count adds problems.

    Raises UserError if the kernel's YAML has no ``drawn``, or if its values give too few problems.
    """
    if not entry.config.drawn:
        raise UserError(f"{entry.path}: drawn is missing: list the values of each dimension there.")
    found = list(islice(_drawn(entry, kind, random.Random(f"{entry.name} {seed}")), count))
    if len(found) < count:
        raise UserError(f"{entry.path}: drawn gives fewer than {count} problems: add values, or write fewer.")
    return found


def _drawn(entry: Entry, kind: str, chance: random.Random) -> Iterator[Any]:
    kernel, seen, failed = entry.loaded.kernel, set(), 0
    most_bytes, most_flops = MOST[kind]
    while failed < TRIES:
        failed += 1
        values = {name: _value(one, chance) for name, one in entry.config.drawn.items()}
        try:
            problem = problems.make(kernel.problem, values)
        except UserError:  # dimensions that do not go together, such as 3 key heads for 8 heads
            continue
        work = kernel.work(problem)
        key = problems.identity_of(problem)
        if key not in seen and work.bytes <= most_bytes and work.flops <= most_flops:
            seen.add(key)
            failed = 0
            yield problem


def _value(one: Span | tuple[Value, ...], chance: random.Random) -> Value:
    if not isinstance(one, Span):
        return chance.choice(one)
    number = int(exp(chance.uniform(log(one.least), log(one.most + 1))))
    return max(one.least, number // one.multiple * one.multiple)
