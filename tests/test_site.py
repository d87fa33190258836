"""The documentation site that ``make docs`` builds, in a headless browser."""

import importlib.util
import shutil
import subprocess
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest
from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.support.ui import WebDriverWait

from pipeline import ROOT
from tests.pipeline.test_ui import browser, needs_a_browser
from tests.project import python

pytestmark = [
    pytest.mark.slow,
    pytest.mark.xdist_group("site"),
    pytest.mark.skipif(
        importlib.util.find_spec("material") is None, reason="needs mkdocs-material: make setup installs it"
    ),
]

__all__ = ["browser"]


def build(root: Path, site: Path) -> subprocess.CompletedProcess[str]:
    """Build the site of a tree, as ``make docs`` does."""
    return python(
        "-m", "mkdocs", "build", "--strict", "--site-dir", str(site), cwd=root, NO_MKDOCS_2_WARNING="1"
    )


def copied(folder: Path) -> Path:
    """Copy the files from which the site is built. Return the folder."""
    for name in ("docs", "reports"):
        shutil.copytree(ROOT / name, folder / name)
    for name in ("mkdocs.yaml", "README.md", "CONTRIBUTING.md", "SECURITY.md"):
        shutil.copy(ROOT / name, folder)
    return folder


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the site of this tree without warnings. Return its folder."""
    folder = tmp_path_factory.mktemp("site")
    done = build(ROOT, folder)
    assert done.returncode == 0 and "WARNING" not in done.stderr, done.stdout + done.stderr
    return folder


@pytest.fixture
def address(site: Path) -> Iterator[str]:
    """Serve the site. Yield its address."""

    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            """Log no requests."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(site)))
    thread = Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def test_every_page_and_report_is_in_it(site: Path) -> None:
    pages = [path.relative_to(ROOT).with_suffix(".html") for path in (ROOT / "docs").rglob("*.md")]
    reports = [
        path.relative_to(ROOT) for path in (ROOT / "reports").rglob("*") if path.suffix in (".html", ".svg")
    ]
    assert [str(path) for path in [*pages, *reports] if not (site / path).is_file()] == []
    assert (site / "index.html").is_file(), "the README"


def test_links_that_lead_nowhere_fail_it(tmp_path: Path) -> None:
    root = copied(tmp_path)
    readme = root / "README.md"
    links = ("[away](docs/nowhere.md)", "[away](docs/why.md#nothere)", "![away](reports/plots/absent.svg)")
    readme.write_text("\n".join([readme.read_text(), *links]))
    done = build(root, tmp_path / "made")
    assert done.returncode != 0
    for said in ("docs/nowhere.md", "nothere", "reports/plots/absent.svg"):
        assert said in done.stdout + done.stderr


@needs_a_browser
def test_pages_and_the_report_open_from_a_folder(site: Path, browser: webdriver.Chrome) -> None:
    wait = WebDriverWait(browser, 60, 0.3)

    def text() -> str:
        return browser.find_element(By.TAG_NAME, "body").text

    def follow(link: str) -> None:
        browser.execute_script(
            "arguments[0].click()", browser.find_element(By.XPATH, f'//a[normalize-space()="{link}"]')
        )

    browser.get(f"file://{site}/index.html")
    assert "kernel-pipeline" in browser.title
    plot = browser.find_element(By.CSS_SELECTOR, "article img[src$='reports/overview.svg']")
    wait.until(lambda _: browser.execute_script("return arguments[0].naturalWidth", plot))

    follow("kernels' pages")
    wait.until(lambda _: "kernels.html" in browser.current_url)
    follow("softmax")
    wait.until(lambda _: "softmax.html" in browser.current_url)
    assert "online softmax" in text() and "evict_last" in text()
    assert len(browser.find_elements(By.CSS_SELECTOR, "article table")) > 5

    follow("The report")
    wait.until(lambda _: browser.current_url.endswith("reports/report.html#against-the-field"))
    assert "Against the field" in text()

    browser.get(f"file://{site}/docs/why.html")
    follow("All machines")
    wait.until(lambda _: browser.current_url.endswith("reports/report.html"))
    assert "Kernel timings" in text() and browser.find_elements(By.TAG_NAME, "svg")


@needs_a_browser
def test_its_search_finds_a_page(address: str, browser: webdriver.Chrome) -> None:
    browser.get(f"{address}/index.html")
    wait = WebDriverWait(browser, 60, 0.3)
    box = wait.until(
        lambda _: browser.find_element(
            By.CSS_SELECTOR, "input[data-md-component='search-query'], input[type=search], input[name=query]"
        )
    )
    browser.execute_script("arguments[0].focus()", box)
    box.send_keys("mbarrier")
    wait.until(
        lambda _: [
            found
            for found in browser.find_elements(
                By.CSS_SELECTOR, ".md-search-result__link, [class*=search] a[href]"
            )
            if "kernels/row_kernels.html" in (found.get_attribute("href") or "")
        ]
    )


@needs_a_browser
def test_no_page_asks_another_host_for_anything(address: str, browser: webdriver.Chrome) -> None:
    browser.get(f"{address}/docs/kernels/softmax.html")
    asked = browser.execute_script("return performance.getEntriesByType('resource').map(one => one.name)")
    assert asked and [one for one in asked if not one.startswith(address)] == []
