"""What a record may hold of text and numbers: results come from others, too.

Names become parts of paths, of URLs and of queries; text is shown on terminals and pages; numbers are
divided, logged and drawn. What is checked here once, when a record is made or read, needs no care later.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated, Any

from msgspec import Meta

MOST_CHARACTERS = 4000
"""Of a text; MLflow takes no more than 5000 with certainty."""

INTEGER_LIMIT = 2**63 - 1
"""The largest integer that databases and tables of data take."""

COMMANDS = re.compile(
    "[\x00-\x1f\x7f-\x9f\u00ad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ud800-\udfff"
    "\ufdd0-\ufdef\ufeff\ufff9-\ufffb\ufffe\uffff\U000e0000-\U000e007f]"
)
"""Characters that a terminal obeys, that hide or turn around others, and that no XML may hold."""


def visible(text: str) -> str:
    r"""The text with each character that is none to look at as its escape: ``\x1b``, ``\u202e``, ``\n``."""
    if text.isprintable():
        return text
    return COMMANDS.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def visible_lines(text: str) -> str:
    """A text of several lines with its control characters as their escapes."""
    return "\n".join(map(visible, text.split("\n")))


def short(text: str) -> str:
    """A text on one line, and no longer than what every table takes."""
    return visible(text)[:MOST_CHARACTERS]


def is_printable(text: str) -> bool:
    """Whether a word holds no control character and no separator of lines."""
    return text.isprintable() or not any(
        (kind := unicodedata.category(one))[0] == "C" or kind in ("Zl", "Zp") for one in text
    )


@dataclass(frozen=True)
class Changed:
    """Marks a type whose values every record changes when it is made or read."""

    by: Callable[[Any], Any]

    def __call__(self, value: Any) -> Any:
        """The value as a record holds it."""
        return self.by(value)


@dataclass(frozen=True)
class Rounded:
    """Marks a number that has so many significant digits from when its record is made: the record in memory
    is the one that its file holds. A number that is read from JSON stays as it was written."""

    digits: int

    def __call__(self, value: Any) -> Any:
        """The number as a record holds it."""
        is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
        return rounded(value, self.digits) if is_number else value


Text = Annotated[str, Changed(short)]
"""Text that is shown to people, on one line."""

NAME = r"[A-Za-z0-9_][A-Za-z0-9_.+-]*"
Name = Annotated[str, Meta(pattern=rf"^{NAME}\Z", max_length=100)]
"""A kernel, a provider, a workload, a device's slug, a run: a word of a path."""

BELOW = r"^[\w=+,@-][\w.=+,@-]*(/[\w=+,@-][\w.=+,@-]*)*\Z"
Below = Annotated[str, Meta(pattern=BELOW, max_length=1000)]
"""A path of a file below a folder: relative, and never up."""

Integer = Annotated[int, Meta(ge=-INTEGER_LIMIT, le=INTEGER_LIMIT)]
Count = Annotated[int, Meta(ge=0, le=INTEGER_LIMIT)]


def rounded(value: float, digits: int) -> float:
    """A number to so many significant digits."""
    return float(f"{value:.{digits}g}")


TIME_DIGITS = 6
"""Of a time, which statistics made of samples."""

Microseconds = Annotated[float, Meta(ge=1e-3, le=1e12), Rounded(TIME_DIGITS)]
"""A time of a call: from a nanosecond, in which no call is done, to eleven days."""

SAMPLE_DIGITS = 5
"""Of a sample. A sample is a turn of about 0.8 ms over its launches, and an event's clock ticks every 32 ns:
the fifth digit is the last that the clock gives. Statistics are of the samples as they were."""

Quantity = Annotated[float, Meta(ge=-1e24, le=1e24)]
"""A number that can be squared and printed."""

NotNegative = Annotated[float, Meta(ge=0, le=1e24), Rounded(5)]
Ceiling = Annotated[float, Meta(ge=1e-9, le=1e12)]
"""GB/s or TFLOP/s that a device reached."""


def _in_utc(value: datetime) -> datetime:
    if not datetime(2000, 1, 1, tzinfo=UTC) <= value < datetime(2200, 1, 1, tzinfo=UTC):
        raise ValueError(f"{value} is of no year in which there are GPUs")
    return value.astimezone(UTC).replace(microsecond=0)


When = Annotated[datetime, Meta(tz=True), Changed(_in_utc)]
"""A second in UTC, of a year in which there are GPUs."""
