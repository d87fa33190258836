"""A table of texts for terminals, Markdown pages and HTML pages."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from markupsafe import Markup, escape
from rich import box
from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text as RichText

from kernel_pipeline.records.fields import visible

from .numbers import print_wide

ABOUT = ("gpu", "words", "provider", "style", "sort")
"""A row's attributes in an HTML page: the values by which a reader filters rows, the style of the row's
provider, and the number by which the first column is sorted."""


@dataclass(frozen=True)
class TextTable:
    """Rows of texts under columns.

    numbers:
        The names of the right-aligned columns.
    strong, breaks:
        The indices of bold rows, and of rows above which a terminal draws a line.
    notes:
        Sentences below the table on a terminal.
    about:
        Each row's attributes in an HTML page, by the names in ``ABOUT``.
    is_packed:
        Whether the script of an HTML page writes the rows when the reader opens the section.
    """

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    numbers: Collection[str] = ()
    strong: Collection[int] = ()
    breaks: Collection[int] = ()
    notes: Sequence[str] = ()
    about: Sequence[Mapping[str, str]] = field(default_factory=tuple)
    is_packed: bool = False

    def rich(self) -> RichTable:
        """Return the table for a terminal, without empty columns: no text is cut off, and no number is
        wrapped."""
        found = RichTable(
            title=self.title or None,
            title_justify="left",
            caption="\n".join(self.notes) or None,
            caption_justify="left",
            box=box.SIMPLE_HEAD,
            show_edge=False,
            pad_edge=False,
            padding=(0, 1, 0, 0),
        )
        filled = [
            place
            for place in range(len(self.columns))
            if not self.rows or any(row[place] for row in self.rows)
        ]
        for place in filled:
            name = self.columns[place]
            is_number = name in self.numbers
            found.add_column(
                name,
                justify="right" if is_number else "left",
                no_wrap=is_number or place == 0,
                overflow="fold",
            )
        for place, row in enumerate(self.rows):
            if place in self.breaks:
                found.add_section()
            found.add_row(
                *(RichText(row[one]) for one in filled), style="bold" if place in self.strong else None
            )
        return found

    def markdown(self, *, has_code: bool = False) -> str:
        """Return the table as Markdown. With ``has_code``, words in backticks are code, else plain text."""
        aligned = ["---:" if name in self.numbers else "---" for name in self.columns]
        header, *rows = (
            f"| {' | '.join(as_markdown(cell, has_code=has_code) for cell in row)} |"
            for row in [self.columns, *self.rows]
        )
        return "\n".join([header, f"|{'|'.join(aligned)}|", *rows])

    def print(self, console: Console) -> None:
        """Print the table on a terminal."""
        print_wide(console, self.rich())

    @property
    def right(self) -> list[int]:
        """The positions of the columns of numbers, counted from 1."""
        return [place for place, name in enumerate(self.columns, 1) if name in self.numbers]

    @property
    def known(self) -> list[tuple[Sequence[str], Mapping[str, str]]]:
        """Each row with its attributes."""
        return list(zip(self.rows, self.about or [{}] * len(self.rows), strict=True))

    @property
    def packed(self) -> dict[str, Any]:
        """The rows as data: the distinct texts, and each row as indices of its texts, ``ABOUT`` first."""
        texts: dict[str, int] = {}
        rows = [
            [
                texts.setdefault(text, len(texts))
                for text in (*(about.get(name, "") for name in ABOUT), *cells)
            ]
            for cells, about in self.known
        ]
        return {"texts": list(texts), "rows": rows}


def as_markdown(text: str, *, has_code: bool = False) -> str:
    """Escape a text for Markdown, so that it makes no tag, link or further cell.

    With ``has_code``, words in backticks are code.
    """
    parts = re.split(r"`([^`]*)`", visible(text)) if has_code else [visible(text)]
    return "".join(f"`{part}`" if place % 2 else _plain(part) for place, part in enumerate(parts))


def _plain(text: str) -> str:
    escaped = re.sub(r"[\\`\[\]|]", r"\\\g<0>", text)
    # A "<" before a space or "= " begins no tag and stays legible.
    return re.sub(r"<(?!=? )", "&lt;", re.sub(r"&(?=#?\w+;)", "&amp;", escaped))


def as_html(text: str, *, has_code: bool = False) -> Markup:
    """Escape a text for HTML; with ``has_code``, words in backticks are code."""
    escaped = str(escape(text))
    return Markup(re.sub(r"`([^`]*)`", r"<code>\1</code>", escaped) if has_code else escaped)
