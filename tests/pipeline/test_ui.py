"""What a person sees in MLflow's own pages, in a browser without a screen."""

from __future__ import annotations

import re
import shutil
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
import requests
from selenium import webdriver
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.support.ui import WebDriverWait

from pipeline.reporting.mlflow_store import page
from pipeline.ui import claimed_port
from tests.factory import H100, H200, grid, write_results
from tests.mlflow_store import log, run_ids, server, start

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
    # Selenium's own manager would look for drivers and report its use over the network.
    monkeypatch.setenv("SE_OFFLINE", "true")
    monkeypatch.setenv("SE_AVOID_STATS", "true")
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM or ""
    for flag in (*FLAGS, f"--user-data-dir={tmp_path / 'profile'}"):
        options.add_argument(flag)
    driver = webdriver.Chrome(options=options, service=Service(DRIVER))
    yield driver
    driver.quit()


@needs_a_browser
def test_the_printed_link_shows_gpus_configurations_and_gbps_against_size(
    tmp_path: Path, browser: webdriver.Chrome
) -> None:
    sizes = (1024, 2048, 4096, 8192)
    rows = grid(gpus=(H200, H100), sizes=sizes, block_sizes=(1024,))
    results = write_results(tmp_path / "results", rows)
    (tmp_path / "server").mkdir()
    with server(tmp_path / "server") as address:
        log(results, address)
        browser.get(page(address, ["1"]))

        wait = WebDriverWait(browser, 60, 0.3)

        def chart(name: str) -> str:
            """The ticks, the axis and the legend of the chart with that title; empty when there is none."""
            card = f"//*[@data-testid='experiment-view-compare-runs-card'][.//h4[@title='{name}']]"
            return "\n".join(found.text for found in browser.find_elements(By.XPATH, card))

        def row(name: str) -> str:
            return f"//*[@role='gridcell'][.//a[normalize-space()='{name}']]"

        # One line a GPU: the best at each size.
        parents = [f"softmax @ {gpu}" for gpu in (H200, H100)]
        wait.until(lambda _: all(browser.find_elements(By.XPATH, row(name)) for name in parents))
        wait.until(lambda _: all(f"{name} (gbps)" in chart("gbps") for name in parents))
        browser.save_screenshot(str(tmp_path / "gpus.png"))
        # Which ticks the axis gets depends on how wide the chart is: past 3,500 there are but the sizes.
        labels = chart("gbps").splitlines()
        assert "Step" in labels and any(label.isdigit() and 4000 <= int(label) <= 8000 for label in labels)
        assert all(f"{name} (ceiling_fraction)" in chart("ceiling_fraction") for name in parents)

        # Behind the plus sign of a GPU, its configurations, a line each in the same chart.
        browser.find_element(By.XPATH, row(parents[0]) + "//button").click()
        children = [f"{name} @ {H200}" for name in ("torch float32", "triton_online float32 1024x8w")]
        wait.until(lambda _: all(browser.find_elements(By.XPATH, row(name)) for name in children))
        wait.until(lambda _: all(f"{name} (gbps)" in chart("gbps") for name in children))
        browser.save_screenshot(str(tmp_path / "configurations.png"))
        assert all(f"{name} (median_us)" in chart("median_us") for name in children)

        # What a sweep prints opens one run: its page, with the metrics and what it was run by.
        browser.get(page(address, ["1"], run_ids(tmp_path / "server" / "mlflow.db")[parents[0]]))
        opened = [parents[0], "ceiling_copy_gbps", "4270"]
        wait.until(lambda _: all(text in browser.find_element(By.TAG_NAME, "body").text for text in opened))


@pytest.mark.parametrize("ending", [signal.SIGINT, signal.SIGHUP])
def test_the_command_publishes_serves_and_ends_cleanly(tmp_path: Path, ending: signal.Signals) -> None:
    results = write_results(tmp_path / "results", grid(providers=("torch",)))
    database = tmp_path / "mlflow.db"
    process = start(f"input={results}", f"tracking.uri=sqlite:///{database}", stage="ui")
    assert process.stdout is not None
    line = next(line for line in process.stdout if line.startswith("Open "))
    link = re.fullmatch(
        r"Open (http://127\.0\.0\.1:\d+)/#/experiments/1/runs\?\S+ \(Ctrl-C ends it\)\n", line
    )
    assert link
    assert "<title>MLflow</title>" in requests.get(link[1], timeout=120).text
    run_id = run_ids(database)[f"softmax @ {H200}"]
    artifact = {"run_uuid": run_id, "path": f"results/timings/softmax/{H200}.jsonl"}
    ledger = requests.get(f"{link[1]}/get-artifact", artifact, timeout=120)
    assert ledger.content == (results / "timings" / "softmax" / f"{H200}.jsonl").read_bytes()

    told = b"".join(titles(process.pid))
    assert b"mlflow" in told and bytes(database) not in told, "an address may hold a password"

    process.send_signal(ending)
    out, err = process.communicate(timeout=120)
    assert (process.returncode, out, err) == (0, "", "")
    with pytest.raises(requests.ConnectionError):
        requests.get(link[1], timeout=120)


def titles(pid: int) -> list[bytes]:
    """The command lines of a process's descendants, which every user of the machine can read."""
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
