"""How ``make docs`` makes a site: pages keep their paths in the repository, so that their links stay right.

MkDocs calls these (mkdocs.yaml, ``hooks``). A report is in the repository as Markdown and as HTML; the site
has the HTML.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.nav import Link, Navigation, Section

ROOT = Path(__file__).parents[1]

PAGES = ("README.md", "CONTRIBUTING.md", "SECURITY.md", "docs/**/*.md", "docs/**/*.ncu-rep", "docs/site.css")
REPORT = "reports/report"

OF_REPORTS = (".html", ".svg", ".csv", ".json")

MARKDOWN = re.compile(rf"(\]\([\w./-]*{REPORT})\.md\b")
"""A link to the report in Markdown."""


def of_repository() -> Iterator[str]:
    """The files of the site, by their paths in the repository."""
    found = [path for pattern in PAGES for path in ROOT.glob(pattern)]
    found += [path for path in (ROOT / "reports").rglob("*") if path.suffix in OF_REPORTS]
    yield from sorted(str(path.relative_to(ROOT)) for path in found)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """The repository's pages in place of those that were found in docs/; the theme's files stay."""
    for file in list(files):
        if file.abs_src_path is not None and Path(file.abs_src_path).is_relative_to(config.docs_dir):
            files.remove(file)
    for path in of_repository():
        files.append(File(path, str(ROOT), config.site_dir, config.use_directory_urls))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Links to the report lead to its HTML."""
    return MARKDOWN.sub(r"\1.html", markdown)


def on_nav(nav: Navigation, **_: Any) -> Navigation:
    """The report after the pages."""
    nav.items.append(Section("Report", [Link("All machines", f"{REPORT}.html")]))
    return nav
