"""A page of sections, which renders as Markdown and as HTML."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from .charts import HEIGHT, SHAPES, WIDTH, Chart
from .tables import TextTable, as_html, as_markdown

TEMPLATES = Path(__file__).with_name("templates")


@dataclass(frozen=True)
class Text:
    """A paragraph, whose ``kind`` is plain (empty), ``note`` (in small letters) or ``alarm``.

    ``link`` is the title of a section that says more. With ``has_code``, words in backticks are code.
    """

    text: str
    kind: str = ""
    link: str = ""
    has_code: bool = False


@dataclass(frozen=True)
class Items:
    """A list of sentences."""

    lines: Sequence[str]


@dataclass(frozen=True)
class Figure:
    """The overview's plot: Markdown links its ``file`` beside the page, HTML draws its ``view``."""

    title: str
    file: str
    view: Mapping[str, Any]


@dataclass(frozen=True)
class Charts:
    """Charts with ``columns`` in a row. Markdown links their ``file`` beside the page, or omits them."""

    title: str
    charts: Sequence[Chart]
    columns: int = 3
    file: str = ""


@dataclass(frozen=True)
class Section:
    """Blocks under a heading.

    about:
        The values by which an HTML page filters sections: ``kernel``, ``gpu``.
    is_folded, is_open:
        Whether the section can be folded in HTML, and whether a folding section is open at first.
    look:
        The name of the section's style in HTML.
    """

    title: str
    blocks: Sequence[Text | Items | Figure | Charts | TextTable | Section]
    about: Mapping[str, str] = field(default_factory=dict)
    is_folded: bool = False
    is_open: bool = False
    look: str = ""

    @property
    def anchor(self) -> str:
        """The fragment of a link to the section, as GitHub derives it from the title."""
        return anchor(self.title)


@dataclass(frozen=True)
class Page:
    """A whole page. ``choices`` are the values by which a reader can filter, with their names."""

    title: str
    blocks: Sequence[Text | Items]
    sections: Sequence[Section]
    choices: Mapping[str, Mapping[str, str]]

    def markdown(self, glossary: str = "") -> str:
        """Return the page as Markdown, with a link to the glossary if its address is given."""
        top = Section(self.title, [*self.blocks, *self.sections])
        head, *lines = _markdown(top, 1)
        words = ["", f"[The glossary]({glossary}) explains the words."] if glossary else []
        return "\n".join([head, *words, *lines]).strip("\n") + "\n"

    def html(self, styles: Mapping[str, tuple[str, str]]) -> str:
        """Return the page as one HTML file. ``styles`` are the colours on light and on dark, by name."""
        shown: dict[str, Any] = {"page": self, "styles": styles, "shapes": SHAPES.values()}
        return _jinja().get_template("page.html.j2").render(shown)


def plot(name: str, charts: Sequence[Chart], styles: Mapping[str, tuple[str, str]]) -> str:
    """Return charts as SVG: a row for each panel, one chart for each machine in it, and the legend below."""
    views = [one.view for one in charts]
    rows: dict[str, list[Mapping[str, Any]]] = {}
    for view in views:
        rows.setdefault(view["title"].partition(" · ")[2], []).append(view)
    high = HEIGHT + 24
    placed = [
        (x * WIDTH, 24 + y * high, v) for y, some in enumerate(rows.values()) for x, v in enumerate(some)
    ]
    columns = 2 * max(map(len, rows.values()))
    lines = {line["provider"]: line for view in views for line in view["lines"]}.values()
    top = 40 + len(rows) * high
    legend = [(10 + i % columns * 240, top + i // columns * 20, line) for i, line in enumerate(lines)]
    size = {"width": 240 * columns, "height": top + -(-len(lines) // columns) * 20}
    return _svg(f"plot-{name}", styles, **size, charts=placed, legend=legend)


def overview_svg(view: Mapping[str, Any], styles: Mapping[str, tuple[str, str]]) -> str:
    """Return the overview's plot as SVG."""
    return _svg("overview", styles, width=view["width"], height=view["height"], overview=view)


def _svg(name: str, styles: Mapping[str, tuple[str, str]], **shown: Any) -> str:
    every = {"overview": None, "charts": (), "legend": (), "shapes": SHAPES.values(), **shown}
    return _jinja().get_template("plot.svg.j2").render(name=name, styles=styles, **every)


def _jinja() -> Environment:
    jinja = Environment(
        loader=FileSystemLoader(TEMPLATES),
        undefined=StrictUndefined,
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    jinja.policies["json.dumps_kwargs"] = {"sort_keys": True, "separators": (",", ":")}
    jinja.filters |= {"text": as_html, "anchor": anchor, "kind": lambda one: type(one).__name__}
    return jinja


def anchor(title: str) -> str:
    """Return the fragment of a link to a heading, as GitHub derives it from the title."""
    return re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")


def _markdown(section: Section, level: int) -> Iterator[str]:
    """Yield the lines of a section, with an empty line after each block."""
    yield from (f"{'#' * level} {as_markdown(section.title)}", "")
    for block in section.blocks:
        match block:
            case Section() if any(isinstance(one, TextTable) and one.is_packed for one in block.blocks):
                continue  # its table would make the page too long
            case Section():
                yield from _markdown(block, level + 1)
                continue
            case Text():
                line = as_markdown(block.text, has_code=block.has_code)
                more = f"[{block.link}](#{anchor(block.link)})" if block.link else ""
                yield ("> " * (block.kind == "alarm")) + " ".join(filter(None, [line, more]))
            case Items():
                yield from (f"- {as_markdown(line)}" for line in block.lines)
            case Figure():
                yield f"![{as_markdown(block.title)}]({block.file})"
            case Charts() if block.file:
                yield f"![{as_markdown(block.title)}]({block.file})"
            case TextTable():
                yield block.markdown()
            case _:
                continue
        yield ""
