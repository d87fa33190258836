"""Parse the report's pages: sections and tables of Markdown, and elements of HTML."""

import re
from html.parser import HTMLParser


def section(markdown: str, title: str) -> str:
    """Return the text below a heading, up to the next heading of its level or higher; empty if it is
    missing."""
    found = re.search(rf"^(#+) {re.escape(title)}\n(.*)", markdown, re.MULTILINE | re.DOTALL)
    if found is None:
        return ""
    return re.split(rf"^#{{1,{len(found[1])}}} ", found[2], flags=re.MULTILINE)[0]


def tables(markdown: str) -> list[list[list[str]]]:
    """Return the tables of a text as lists of cells, without their separator lines."""
    blocks = re.findall(r"(?:^\|.*\n)+", markdown, re.MULTILINE)
    found = [[cells(line) for line in block.splitlines()] for block in blocks]
    return [[line for line in table if not set("".join(line)) <= set("-:")] for table in found]


def cells(line: str) -> list[str]:
    """Return the cells of a line of a Markdown table."""
    return [cell.strip() for cell in line.removeprefix("|").removesuffix("|").split("|")]


class Page(HTMLParser):
    """The tables of a page as lists of cell texts, its references, ids and text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tables: list[list[list[str]]] = []
        self.references: list[str] = []
        self.ids: list[str] = []
        self.open: list[str] = []
        self.text = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        self.references += [found for name in ("src", "href", "xlink:href") if (found := values.get(name))]
        self.ids += [found] if (found := values.get("id")) else []
        self.open.append(tag)
        if tag == "table":
            self.tables.append([])
        elif tag == "tr":
            self.tables[-1].append([])
        elif tag in ("td", "th"):
            self.tables[-1][-1].append("")

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        while self.open and self.open.pop() != tag:
            pass

    def handle_data(self, data: str) -> None:
        if {"script", "style"} & set(self.open):
            return
        self.text += data
        if {"td", "th"} & set(self.open):
            self.tables[-1][-1][-1] += data


def part(html: str, anchor: str) -> Page:
    """Return a section of a page."""
    found = re.search(rf'<section id="{anchor}".*?</section>', html, re.DOTALL)
    return Page("" if found is None else found[0])
