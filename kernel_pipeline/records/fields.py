"""The types of text and numbers in records, which may come from other people.

Names become parts of paths, URLs and queries; text is shown on terminals and pages; numbers are divided and
plotted, also on logarithmic axes. Values are validated once, when a record is created or read.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated, Any

from msgspec import Meta

from ..declared import INTEGER_LIMIT

MOST_CHARACTERS = 4000
"""The longest text; MLflow is only sure to accept 5000 characters."""

COMMANDS = re.compile(
    "[\x00-\x1f\x7f-\x9f\u00ad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ud800-\udfff"
    "\ufdd0-\ufdef\ufeff\ufff9-\ufffb\ufffe\uffff\U000e0000-\U000e007f]"
)
"""Control characters of terminals, characters that hide or reorder text, and characters that XML forbids."""


def visible(text: str) -> str:
    r"""Return the text with each control character replaced by its escape: ``\x1b``, ``\u202e``, ``\n``."""
    if text.isprintable():
        return text
    return COMMANDS.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def visible_lines(text: str) -> str:
    """Return a text with the control characters of each line replaced by escapes."""
    return "\n".join(map(visible, text.split("\n")))


def short(text: str) -> str:
    """Return a text on one line, truncated to ``MOST_CHARACTERS``."""
    return visible(text)[:MOST_CHARACTERS]


def is_printable(text: str) -> bool:
    """Whether a word contains no control character and no line separator."""
    return text.isprintable() or not any(
        (kind := unicodedata.category(one))[0] == "C" or kind in ("Zl", "Zp") for one in text
    )


@dataclass(frozen=True)
class Changed:
    """Marks a type whose values are changed when a record is created or read."""

    by: Callable[[Any], Any]

    def __call__(self, value: Any) -> Any:
        """The value as a record holds it."""
        return self.by(value)


@dataclass(frozen=True)
class Rounded:
    """Marks a number that is rounded to ``digits`` significant digits when Python code creates its record, so
    that the record in memory equals the record in the file. A number that is read from JSON is not
    changed."""

    digits: int

    def __call__(self, value: Any) -> Any:
        """The number as a record holds it."""
        is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
        return rounded(value, self.digits) if is_number else value


Text = Annotated[str, Changed(short)]
"""Text on one line, to show to people."""

NAME = r"[A-Za-z0-9_][A-Za-z0-9_.+-]*"
Name = Annotated[str, Meta(pattern=rf"^{NAME}\Z", max_length=100)]
"""The name of a kernel, provider, workload or run, or a device's slug; it is safe as a part of a path."""

BELOW = r"^[\w=+,@-][\w.=+,@-]*(/[\w=+,@-][\w.=+,@-]*)*\Z"
Below = Annotated[str, Meta(pattern=BELOW, max_length=1000)]
"""A relative path of a file below a folder; it can't leave the folder."""

Integer = Annotated[int, Meta(ge=-INTEGER_LIMIT, le=INTEGER_LIMIT)]
Count = Annotated[int, Meta(ge=0, le=INTEGER_LIMIT)]


def rounded(value: float, digits: int) -> float:
    """Return a number rounded to ``digits`` significant digits."""
    return float(f"{value:.{digits}g}")


TIME_DIGITS = 6
"""The significant digits of a time that statistics computed from samples."""

Microseconds = Annotated[float, Meta(ge=1e-3, le=1e12), Rounded(TIME_DIGITS)]
"""The time of a call, between a nanosecond and eleven days."""

SAMPLE_DIGITS = 5
"""The significant digits of a sample. A sample is a turn of about 0.8 ms divided by its launches, and an
event's clock has a resolution of 32 ns, so the fifth digit is the last that the clock gives. Statistics use
the unrounded samples."""

Quantity = Annotated[float, Meta(ge=-1e24, le=1e24)]
"""A number that can be squared and printed."""

NotNegative = Annotated[float, Meta(ge=0, le=1e24), Rounded(5)]
Ceiling = Annotated[float, Meta(ge=1e-9, le=1e12)]
"""A rate in GB/s or TFLOP/s that a device reached."""


def _in_utc(value: datetime) -> datetime:
    if not datetime(2000, 1, 1, tzinfo=UTC) <= value < datetime(2200, 1, 1, tzinfo=UTC):
        raise ValueError(f"{value} is not between the years 2000 and 2199")
    return value.astimezone(UTC).replace(microsecond=0)


When = Annotated[datetime, Meta(tz=True), Changed(_in_utc)]
"""A time in UTC, in whole seconds, between the years 2000 and 2200."""
