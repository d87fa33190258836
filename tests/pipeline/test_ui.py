"""MLflow's own pages as a person sees them, in a headless browser."""

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import pytest
import requests
from selenium import webdriver
from selenium.common.exceptions import StaleElementReferenceException
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.support.ui import WebDriverWait

from pipeline.tracking.views import page
from pipeline.ui import claimed_port
from tests.factory import H100, H200, MEASURED_AT, grid, write_record, write_results
from tests.mlflow_store import content, log, run_ids, server, start

SWEEP, LATER = "20261122T120000Z-abcdef", MEASURED_AT + timedelta(days=1)

CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--window-size=1600,1200",
)

needs_a_browser = pytest.mark.skipif(
    not (CHROMIUM and DRIVER),
    reason="needs Debian's chromium and chromium-driver: apt-get install chromium chromium-driver",
)


@pytest.fixture
def browser(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[webdriver.Chrome]:
    # Selenium's manager would download drivers and report its use over the network.
    monkeypatch.setenv("SE_OFFLINE", "true")
    monkeypatch.setenv("SE_AVOID_STATS", "true")
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM or ""
    for flag in (*FLAGS, f"--user-data-dir={tmp_path / 'profile'}"):
        options.add_argument(flag)
    driver = webdriver.Chrome(options=options, service=Service(DRIVER))
    yield driver
    driver.quit()


class Pages:
    """MLflow's pages as a person sees and clicks them."""

    def __init__(self, browser: webdriver.Chrome, address: str) -> None:
        self.browser, self.address = browser, address
        # MLflow redraws its lists while the test reads them.
        self.wait = WebDriverWait(browser, 60, 0.3, ignored_exceptions=[StaleElementReferenceException])

    def open(self, link: str) -> None:
        """Open a link in a browser that shows none of these pages."""
        self.browser.get("about:blank")
        self.browser.get(link)

    @property
    def text(self) -> str:
        """The text of the page."""
        return self.browser.find_element(By.TAG_NAME, "body").text

    def chart(self, name: str) -> str:
        """Return the ticks, axis and legend of the chart with this title, or "" if there is none."""
        card = f"//*[@data-testid='experiment-view-compare-runs-card'][.//h4[@title='{name}']]"
        return "\n".join(found.text for found in self.browser.find_elements(By.XPATH, card))

    def runs(self) -> list[str]:
        """Return the names in the list of runs, from top to bottom."""
        links = self.browser.find_elements(By.XPATH, "//*[@role='gridcell']//a[contains(@href, '/runs/')]")
        return [link.text for link in links]

    def headings(self) -> set[str]:
        """Return the column headings of the list of runs."""
        cells = self.browser.find_elements(By.XPATH, "//*[@role='columnheader']")
        return {cell.text for cell in cells if cell.text}

    def click(self, text: str) -> None:
        """Click the button, link or menu item with this text."""
        path = f"//*[self::button or self::a or @role='menuitem'][contains(normalize-space(), '{text}')]"
        self.wait.until(lambda _: self.browser.find_elements(By.XPATH, path))
        self.browser.find_elements(By.XPATH, path)[-1].click()


@pytest.mark.slow
@needs_a_browser
def test_a_person_finds_gpus_providers_configurations_and_a_sweep_by_links_and_menus(
    tmp_path: Path, browser: webdriver.Chrome
) -> None:
    sizes = (256, 1024, 4096, 16384, 65536)
    providers = ("torch", "triton_online", "cuda")
    rows = grid(gpus=(H200, H100), sizes=sizes, providers=providers, block_sizes=(1024, 2048))
    results = write_results(tmp_path / "results", rows)
    of_cuda = grid(sizes=sizes, providers=("cuda",), block_sizes=(512, 1024), started=LATER)
    write_record(tmp_path / "outputs", of_cuda, SWEEP)
    (tmp_path / "server").mkdir()
    browser.set_window_size(
        2400, 1200
    )  # MLflow's assistant takes some width, and columns off the screen are not drawn
    with server(tmp_path / "server") as address:
        log(results, address)
        log(results, address, input=None, runs=tmp_path / "outputs" / "runs")
        pages = Pages(browser, address)

        # The list shows a description of each experiment.
        pages.open(page(address, []))
        pages.wait.until(lambda _: "softmax" in pages.text)
        assert "Softmax over the rows" in pages.text and "Model registry" in pages.text

        # A kernel's page has one line for the best of each provider on each GPU, over x on a logarithmic
        # axis.
        pages.open(page(address, ["1"], "best"))
        bests = {f"{name} float32 best @ {gpu}" for name in providers for gpu in (H200, H100)}
        pages.wait.until(lambda _: set(pages.runs()) == bests)
        pages.wait.until(lambda _: all(f"{name} (gbps)" in pages.chart("gbps") for name in bests))
        browser.save_screenshot(str(tmp_path / "best.png"))
        labels = pages.chart("gbps").splitlines()
        assert {"1000", "10k"} <= set(labels), "decades, which a linear axis does not have"
        assert pages.chart("gbps_at_4096") and pages.chart("ceiling_fraction") and pages.chart("median_us")
        assert pages.runs()[0] == f"cuda float32 best @ {H200}", "the fastest at 4096 first"

        # The menu leads to one provider's configurations, with its parameters as columns.
        pages.click("Best by provider")
        pages.click("cuda: configurations")
        shown = {
            f"cuda float32 {block}x{warps}w @ {gpu}"
            for block in (1024, 2048)
            for warps in (4, 8)
            for gpu in (H200, H100)
        }
        pages.wait.until(lambda _: shown <= set(pages.runs()))
        pages.wait.until(lambda _: "gbps_at_4096" in pages.headings())
        browser.save_screenshot(str(tmp_path / "configurations.png"))

        # The link that a sweep prints shows its configurations over x.
        search = f"tags.kind = 'config' and tags.run = '{SWEEP}'"
        pages.open(page(address, ["1"], "best", search))
        own = [
            f"cuda float32 {block}x{warps}w @ {H200}, {SWEEP}" for block in (512, 1024) for warps in (4, 8)
        ]
        pages.wait.until(lambda _: set(pages.runs()) == set(own))
        browser.save_screenshot(str(tmp_path / "sweep.png"))

        # The history lists each sweep with its command and commit, and a sweep's page has its table.
        pages.open(page(address, ["1"], "sweeps").replace("&compareRunsMode=CHART", ""))
        name = f"softmax @ {H200}, {SWEEP}"
        pages.wait.until(lambda _: pages.runs() == [name])
        pages.wait.until(lambda _: {"command", "commit"} <= pages.headings())
        browser.save_screenshot(str(tmp_path / "history.png"))
        browser.find_element(By.LINK_TEXT, name).click()
        told = [f"{of_cuda[0].origin.command} at commit", "of ceiling", "ceiling_copy_gbps", "4270"]
        pages.wait.until(lambda _: all(text in pages.text for text in told))


@pytest.mark.slow
def test_the_command_publishes_serves_and_ends_cleanly(tmp_path: Path) -> None:
    results = write_results(tmp_path / "results", grid(providers=("torch",)))
    database = tmp_path / "mlflow.db"
    process = start(f"input={results}", f"tracking.uri=sqlite:///{database}", stage="ui")
    assert process.stdout is not None
    opens = r"Open (http://127\.0\.0\.1:\d+)/(\?token=[\w-]+)#/experiments/1/runs\?\S+ \(Ctrl-C ends it\)\n"
    link = re.fullmatch(opens, next(process.stdout))
    assert link, "before anything is published"
    mine = requests.Session()
    assert "location.replace" in mine.get(f"{link[1]}/{link[2]}", timeout=120).text, (
        "the token leaves the address"
    )
    assert "<title>MLflow</title>" in mine.get(link[1], timeout=120).text
    assert next(line for line in process.stdout if " rows in " in line)
    run_id = run_ids(database)[f"softmax @ {H200}"]
    artifact = {"run_uuid": run_id, "path": f"results/timings/softmax/{H200}.jsonl"}
    ledger = mine.get(f"{link[1]}/get-artifact", params=artifact, timeout=120)
    assert ledger.content == (results / "timings" / "softmax" / f"{H200}.jsonl").read_bytes()

    told = b"".join(titles(process.pid))
    assert b"uvicorn" in told and bytes(database) not in told, "an address may hold a password"
    assert link[2].removeprefix("?token=").encode() not in told

    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=120)
    assert (process.returncode, out, err) == (0, "", "")
    with pytest.raises(requests.ConnectionError):
        requests.get(link[1], timeout=120)


@dataclass(frozen=True)
class Served:
    """A ``pipeline.ui`` that has published everything: its address, its token and its store."""

    address: str
    token: str
    database: Path


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """Start ``pipeline.ui`` over the results of two GPUs."""
    folder = tmp_path_factory.mktemp("served")
    results = write_results(folder / "results", grid(gpus=(H200, H100)))
    database = folder / "mlflow.db"
    process = start(f"input={results}", f"tracking.uri=sqlite:///{database}", stage="ui")
    try:
        assert process.stdout is not None
        link = re.match(r"Open (http://127\.0\.0\.1:\d+)/\?token=([\w-]+)#", next(process.stdout))
        assert link
        assert next(line for line in process.stdout if " rows in " in line)
        yield Served(link[1], link[2], database)
    finally:
        process.terminate()
        process.communicate(timeout=120)


@pytest.mark.slow
@needs_a_browser
@pytest.mark.xdist_group("ui")
def test_the_printed_link_lets_a_browser_in_and_from_then_on_every_address(
    tmp_path: Path, browser: webdriver.Chrome, served: Served
) -> None:
    address, token = served.address, served.token
    pages = Pages(browser, address)
    pages.open(page(address, ["1"], "best"))
    assert "Open the link that `make ui` has printed" in pages.text
    pages.open(page(address, ["1"], "best").replace("/#", f"/?token={token}#", 1))
    bests = {f"{name} float32 best @ {gpu}" for name in ("torch", "triton_online") for gpu in (H200, H100)}
    pages.wait.until(lambda _: set(pages.runs()) == bests)
    browser.save_screenshot(str(tmp_path / "best.png"))
    assert token not in browser.current_url and "/#/experiments/1/runs" in browser.current_url
    pages.open(page(address, []))
    pages.wait.until(lambda _: "Softmax over the rows" in pages.text)


WRITES = [
    ("POST", "api/2.0/mlflow/experiments/delete", {"experiment_id": "1"}),
    ("POST", "ajax-api/2.0/mlflow/experiments/delete", {"experiment_id": "1"}),
    ("PUT", "api/2.0/mlflow-artifacts/artifacts/x/evil.txt", None),
    ("POST", "ajax-api/2.0/mlflow/upload-artifact?run_uuid={run}&path=evil.txt", None),
]
"""Requests that need the token, and writes of artifacts, which are refused even with it."""


@pytest.mark.slow
@pytest.mark.xdist_group("ui")
def test_who_has_no_token_changes_and_sees_nothing_and_nobody_writes_artifacts(served: Served) -> None:
    run = run_ids(served.database)[f"softmax @ {H200}"]

    def asked(headers: dict[str, str]) -> list[int]:
        return [
            requests.request(
                method, f"{served.address}/{path.format(run=run)}", json=body, headers=headers, timeout=60
            ).status_code
            for method, path, body in [*WRITES, ("GET", "", None), ("GET", "health", None)]
        ]

    before = content(served.database)
    for headers in (
        {},
        {"Authorization": "Bearer wrong"},
        {"Cookie": "pipeline-ui-5000=wrong"},
        {"X-Forwarded-For": "127.0.0.1"},
        {"Authorization": f"Bearer {served.token}", "Origin": "http://127.0.0.1:1"},
    ):
        assert asked(headers) == [403] * 6
    if os.geteuid() == 0:
        other = [sys.executable, "-I", "-S", "-c", AS_NOBODY, served.address, str(os.getpid())]
        assert subprocess.check_output(other, text=True) == "403 none of it\n"
    assert content(served.database) == before
    assert asked({"Authorization": f"Bearer {served.token}"}) == [200, 404, 403, 403, 200, 200]
    assert not [*served.database.parent.rglob("evil.txt"), *Path("mlartifacts").glob("x")]


AS_NOBODY = """
import encodings.idna, os, pathlib, sys, urllib.error, urllib.request
os.setgroups([]), os.setgid(65534), os.setuid(65534)
try:
    urllib.request.urlopen(sys.argv[1] + "/api/2.0/mlflow/experiments/delete", b"{}")
except urllib.error.HTTPError as error:
    print(error.code, end=" ")
seen = b""
for place in pathlib.Path("/proc").glob("[0-9]*"):
    for name in ("cmdline", "environ"):
        try:
            seen += (place / name).read_bytes()
        except OSError:
            pass
print("some of it" if b"_UI_" + b"TOKEN=" in seen else "none of it")
"""
"""A program that, as another account, requests a change and looks for the token in /proc."""


def titles(pid: int) -> list[bytes]:
    """Return the command lines of a process's descendants, which every user of the machine can read."""
    found = []
    for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
        found += [Path(f"/proc/{child}/cmdline").read_bytes(), *titles(int(child))]
    return found


def test_a_port_in_use_is_passed_over() -> None:
    with claimed_port() as port:
        pass
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        other.bind(("127.0.0.1", port))
        other.listen()
        with claimed_port() as next_port:
            assert next_port > port


def test_a_port_that_another_command_is_about_to_use_is_passed_over() -> None:
    with claimed_port() as port, claimed_port() as next_port:
        assert next_port > port
