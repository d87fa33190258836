"""What a record may hold of text and numbers: results come from others, too.

Names become parts of paths, of URLs and of queries; text is shown on terminals and pages; numbers are
divided, logged and drawn. What is checked here once, when a record is made or read, needs no care later.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Annotated, Any

from pydantic import AfterValidator, AwareDatetime, Field, GetCoreSchemaHandler, StringConstraints
from pydantic_core import CoreSchema, core_schema

MOST_CHARACTERS = 4000
"""Of a text; MLflow takes no more than 5000 with certainty."""

MOST = 2**63 - 1
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


Text = Annotated[str, AfterValidator(short)]
"""What is shown to people, on one line."""

NAME = r"^[A-Za-z0-9_][A-Za-z0-9_.+-]*$"
Name = Annotated[str, StringConstraints(pattern=NAME, max_length=100)]
"""A kernel, a provider, a workload, a device's slug, a run: what is a word of a path."""

BELOW = r"^[\w=+,@-][\w.=+,@-]*(/[\w=+,@-][\w.=+,@-]*)*$"
Below = Annotated[str, StringConstraints(pattern=BELOW, max_length=1000)]
"""A path of a file below a folder: relative, and never up."""

WORD = r"^[^\p{C}\p{Zl}\p{Zp}]*$"
IDENTIFIER = r"^[\p{XID_Start}_]\p{XID_Continue}*$"

Integer = Annotated[int, Field(ge=-MOST, le=MOST)]
Count = Annotated[int, Field(ge=0, le=MOST)]


def rounded(value: float, digits: int) -> float:
    """A number to so many significant digits."""
    return float(f"{value:.{digits}g}")


class Digits:
    """So many significant digits a number has from when its record is made: the record in memory is the one
    that its file holds. One that is read from JSON is as it was written."""

    def __init__(self, digits: int) -> None:
        self.digits = digits

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        checked = handler(source)
        made = core_schema.no_info_after_validator_function(self._rounded, checked)
        return core_schema.json_or_python_schema(json_schema=checked, python_schema=made)

    def _rounded(self, value: float) -> float:
        return rounded(value, self.digits)


TIME_DIGITS = 6
"""Of a time, which statistics made of samples."""

Microseconds = Annotated[float, Field(ge=1e-3, le=1e12), Digits(TIME_DIGITS)]
"""A time of a call: from a nanosecond, in which no call is done, to eleven days."""

SAMPLE_DIGITS = 5
"""Of a sample. A sample is a turn of about 0.8 ms over its launches, and an event's clock ticks every 32 ns:
the fifth digit is the last that the clock gives. Statistics are of the samples as they were."""

Quantity = Annotated[float, Field(ge=-1e24, le=1e24)]
"""A number that can be squared and printed."""

NotNegative = Annotated[float, Field(ge=0, le=1e24), Digits(5)]
Ceiling = Annotated[float, Field(ge=1e-9, le=1e12)]
"""GB/s or TFLOP/s that a device reached."""


def _in_utc(value: datetime) -> datetime:
    return value.astimezone(UTC).replace(microsecond=0)


When = Annotated[
    AwareDatetime,
    Field(ge=datetime(2000, 1, 1, tzinfo=UTC), lt=datetime(2200, 1, 1, tzinfo=UTC)),
    AfterValidator(_in_utc),
]
"""A second in UTC, of a year in which there are GPUs."""
