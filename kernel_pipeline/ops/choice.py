"""A choice of a provider and its configuration for a problem."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ..declared import Value

WORDS = {
    "exact": "the table of tuned problems",
    "generalised": "the rule between tuned problems, which is trusted here",
    "guessed": "the rule between tuned problems, too far from them to be trusted, but the safest or fastest",
    "default": "a default configuration, the safest that fits",
    "other_dtype": "the rule between tuned problems in another dtype of the same size",
    "sibling": "the rule between tuned problems of another GPU of the same architecture",
    "torch": "the baseline",
}
"""What a choice follows, by ``Choice.how``."""


@dataclass(frozen=True)
class Choice:
    """A provider in a configuration, with a value for each of its parameters.

    ``how`` is ``exact`` for a tuned problem; ``generalised`` for the rule's choice where the rule is trusted;
    ``guessed`` for the rule's choice where it is not trusted but safer or clearly faster; ``default`` for
    a provider's default configuration; ``other_dtype`` for the rule's choice by problems in the other dtype
    of 16 bits; ``sibling`` for the rule's choice by another GPU's table; ``torch`` for the kernel's baseline.
    ``reason`` says in a sentence or two why the choice is not exact, or is empty.
    """

    provider: str
    parameters: Mapping[str, Value]
    how: str
    reason: str
