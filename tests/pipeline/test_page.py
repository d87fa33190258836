"""The report's page in a browser: choices, sorting, tooltips and readability."""

import importlib.util
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from selenium import webdriver
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import Select

from kernel_pipeline import json_lines
from pipeline import ROOT, report
from pipeline.command.options import ReportConfig
from pipeline.store import results
from pipeline.store.evidence import CounterRow, NcuRule, joined
from tests.factory import H100, H200, grid, write_results
from tests.pipeline.test_ui import CHROMIUM, DRIVER, FLAGS, needs_a_browser

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("report"), needs_a_browser]

SENTENCE = "memory limits it: memory throughput 91 %, compute throughput 31 %"

TWO_MEGABYTES = 2_000_000

PAPER_WIDTH = 1047
"""The width between the margins of an A4 sheet in landscape, in pixels."""


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write a report of two kernels on two GPUs, with counters of one configuration."""
    rows = grid(gpus=(H100, H200), providers=("torch", "triton_online", "cuda"), num_warps=(4, 8, 16))
    rows += grid(kernels=("gelu",), gpus=(H200,), providers=("torch", "triton"), dtypes=("bfloat16",))
    folder = write_results(tmp_path_factory.mktemp("in"), rows)
    looked = next(row for row in rows if row.point.provider == "cuda" and row.origin.gpu == H200)
    counted = CounterRow(
        **joined(looked.point, looked.key),
        role="best",
        status="ok",
        function="f",
        environment=looked.parts.environment,
        memory_throughput_pct=91.2,
        estimated_speedup_pct=9.0,
        rules=(NcuRule(name="Long", kind="OPT", text="kernel_" * 20, speedup_pct=9.0, scope="global"),),
        sentence=SENTENCE,
    )
    json_lines.write(results.counters_path(folder, "softmax", H200), [counted])
    output = tmp_path_factory.mktemp("out")
    report.run(ReportConfig(input=folder, output=output, device="cpu"))
    return output / "report.html"


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[webdriver.Chrome]:
    os.environ |= {"SE_OFFLINE": "true", "SE_AVOID_STATS": "true"}
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM or ""
    for flag in (*FLAGS, f"--user-data-dir={tmp_path_factory.mktemp('profile')}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(DRIVER))
    yield driver
    driver.quit()


@pytest.fixture
def page(driver: webdriver.Chrome, written: Path) -> webdriver.Chrome:
    """Open the page anew. Return the driver."""
    screen(driver, 1280)
    driver.get("about:blank")
    driver.get(f"file://{written}")
    return driver


def screen(driver: webdriver.Chrome, width: int, colours: str = "light") -> None:
    size = {"width": width, "height": 1000, "deviceScaleFactor": 1, "mobile": False}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    media = [
        {"name": "prefers-color-scheme", "value": colours},
        {"name": "prefers-reduced-motion", "value": "reduce"},
    ]
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": media})


def seen(page: webdriver.Chrome, selector: str) -> list[Any]:
    """Return the displayed elements."""
    return [one for one in page.find_elements(By.CSS_SELECTOR, selector) if one.is_displayed()]


def texts(page: webdriver.Chrome, selector: str) -> list[str]:
    return [one.text for one in seen(page, selector)]


def choose(page: webdriver.Chrome, name: str, text: str) -> None:
    Select(page.find_element(By.CSS_SELECTOR, f"#choices [name={name}]")).select_by_visible_text(text)


def column(page: webdriver.Chrome, table: str, heading: str) -> list[str]:
    """Return the texts in the displayed cells of a column."""
    headings = texts(page, f"{table} thead th")
    place = 1 + [one.strip(" ▲▼") for one in headings].index(heading)
    return texts(page, f"{table} tbody tr > :nth-child({place})")


BEST = "#softmax [aria-label='softmax: best configurations']"
EVERY = "#softmax .every"


def test_a_reader_chooses_a_kernel_a_gpu_a_dtype_and_a_provider(page: webdriver.Chrome) -> None:
    assert texts(page, "section[data-kernel] h2") == ["gelu"], "one kernel at a time"
    choose(page, "kernel", "softmax")
    top = "return document.getElementById('softmax').getBoundingClientRect().top"
    assert 0 <= page.execute_script(top) < 300, "and it is brought into view"
    choose(page, "kernel", "all")
    assert texts(page, "section[data-kernel] h2") == ["gelu", "softmax"]
    page.find_element(By.LINK_TEXT, "softmax").click()
    assert texts(page, "section[data-kernel] h2") == ["softmax"], "by the navigation too"
    assert set(column(page, BEST, "machine")) == {"NVIDIA H100 80GB HBM3", "NVIDIA H200"}
    assert len(seen(page, "#softmax .charts:first-of-type .chart")) == 2

    choose(page, "gpu", "NVIDIA H200")
    assert set(column(page, BEST, "machine")) == {"NVIDIA H200"}
    assert texts(page, "#softmax .charts:first-of-type figcaption") == ["NVIDIA H200 · float32"]
    assert set(column(page, "#overview table", "machine")) == {"NVIDIA H200"}

    choose(page, "provider", "torch")
    assert {text.split(" ")[0] for text in column(page, EVERY, "configuration")} == {"torch"}
    lines = seen(page, "#softmax .chart [data-provider]")
    assert {line.get_attribute("data-provider") for line in lines} == {"torch"}
    assert texts(page, "#softmax .legend li") == ["torch"]

    choose(page, "words", "bfloat16")
    assert column(page, BEST, "machine") == [] and len(texts(page, "#overview tbody th")) == 1
    page.find_element(By.CSS_SELECTOR, "#choices [type=reset]").click()
    assert page.find_element(By.NAME, "provider").get_attribute("value") == ""


def test_tables_are_sorted_and_searched(page: webdriver.Chrome) -> None:
    choose(page, "kernel", "softmax")
    page.find_element(By.CSS_SELECTOR, f"{EVERY} summary").click()
    heading = next(one for one in seen(page, f"{EVERY} thead button") if one.text == "us")
    heading.click()
    times = [float(text.strip("†!")) for text in column(page, EVERY, "us")]
    assert times == sorted(times) and len(set(times)) > 6
    heading.click()
    assert [float(text.strip("†!")) for text in column(page, EVERY, "us")] == sorted(times, reverse=True)
    assert heading.find_element(By.XPATH, "..").get_attribute("aria-sort") == "descending"
    next(one for one in seen(page, f"{EVERY} thead button") if one.text == "problem").click()
    assert list(dict.fromkeys(column(page, EVERY, "problem"))) == ["256", "1024", "4096"], "as numbers"

    page.find_element(By.NAME, "text").send_keys("cuda h200")
    rows = texts(page, f"{EVERY} tbody tr")
    assert len(rows) == 3 and all("cuda" in row and "H200" in row for row in rows)
    assert " rows" in page.find_element(By.TAG_NAME, "output").text


def test_a_pointer_and_the_arrow_keys_show_the_numbers_of_a_mark(page: webdriver.Chrome) -> None:
    choose(page, "kernel", "softmax")
    chart = seen(page, "#softmax .chart > svg")[0]
    mark = chart.find_elements(By.CSS_SELECTOR, "use")[-1]
    page.execute_script("arguments[0].scrollIntoView({block: 'center'})", chart)
    webdriver.ActionChains(page).move_to_element(mark).perform()
    (tip,) = texts(page, "#tip")
    assert tip.startswith("cuda 1024x8w at 4096, ") and " us, " in tip and " GB/s, " in tip
    assert "% of ceiling, " in tip and tip.endswith(" x torch")
    webdriver.ActionChains(page).move_to_element(seen(page, "h2")[0]).perform()
    assert texts(page, "#tip") == []
    chart.send_keys(Keys.ARROW_RIGHT)
    assert texts(page, "#tip")[0].startswith("torch at 256, ")


@pytest.mark.skipif(
    importlib.util.find_spec("axe_core_python") is None,
    reason="needs axe-core-python: make setup installs it",
)
@pytest.mark.parametrize(("width", "colours"), [(1280, "light"), (390, "dark")])
def test_axe_finds_nothing_serious(page: webdriver.Chrome, width: int, colours: str) -> None:
    found = importlib.util.find_spec("axe_core_python")
    assert found is not None and found.origin is not None
    screen(page, width, colours)
    choose_all = "document.querySelectorAll('details').forEach((one) => { one.open = true; })"
    page.execute_script(choose_all)
    choose(page, "kernel", "softmax")
    page.execute_script(Path(found.origin).with_name("axe.min.js").read_text())
    page.set_script_timeout(120)
    answer = page.execute_async_script("axe.run().then(arguments[arguments.length - 1])")
    assert answer["passes"]
    assert [
        (one["id"], one["impact"], one["nodes"][0]["html"])
        for one in answer["violations"]
        if one["impact"] in ("serious", "critical")
    ] == []


BEYOND = """
const all = (selector) => [...document.querySelectorAll(selector)].filter((one) => one.offsetParent);
const where = (one) => one.getAttribute("aria-label") ?? one.textContent.slice(0, 40);
return [
  all("body *").filter((one) => !one.closest(".scroll, .maps, nav") &&
    one.getBoundingClientRect().right > innerWidth + 1),
  all(".scroll").filter((one) => one.scrollWidth > one.clientWidth),
].map((some) => some.map(where));
"""
"""A script that returns the elements beyond the right edge of the window, and the elements that scroll
sideways."""


@pytest.mark.parametrize("width", [390, 768, 1440])
def test_nothing_is_off_the_screen_but_what_scrolls_in_itself(page: webdriver.Chrome, width: int) -> None:
    screen(page, width)
    page.execute_script("document.querySelectorAll('details').forEach((one) => { one.open = true; })")
    beyond, aside = page.execute_script(BEYOND)
    assert beyond == []
    assert width < 1440 or aside == []
    if width == 390:
        label = next(one for one in aside if one.endswith(": best configurations"))
        box = page.find_element(By.CSS_SELECTOR, f"[aria-label='{label}']")
        first = box.find_element(By.CSS_SELECTOR, "tbody th")
        before = first.location["x"]
        page.execute_script("arguments[0].scrollLeft = 100", box)
        assert first.location["x"] == before, "the first column stays"


def test_nothing_is_cut_on_paper(page: webdriver.Chrome, written: Path) -> None:
    screen(page, PAPER_WIDTH)
    page.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
    page.get(f"file://{written}")
    page.execute_script("document.querySelectorAll('details').forEach((one) => { one.open = true; })")
    assert page.execute_script(BEYOND) == [[], []]
    assert not seen(page, "#bar")
    page.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": ""})


def test_the_page_asks_nobody_and_complains_of_nothing(page: webdriver.Chrome) -> None:
    choose(page, "kernel", "all")
    assert page.execute_script("return performance.getEntriesByType('resource').length") == 0
    assert page.get_log("browser") == []


def test_the_report_in_git_is_no_larger_than_people_wait_for() -> None:
    assert (ROOT / "reports" / "report.html").stat().st_size < TWO_MEGABYTES
