"""Nsight Compute's command line: which one is taken, and what it is told to count."""

from pathlib import Path

import pytest

from pipeline.inspection import ncu
from pipeline.inspection.ncu import Unavailable
from tests.pipeline.inspection.fake_ncu import fake


def test_ncu_is_found_newest_first_and_an_old_one_is_refused(tmp_path: Path) -> None:
    fake(tmp_path / "a", "2024.1.0.0")
    fake(tmp_path / "opt/2025.3.1", "2025.3.1.0").rename(tmp_path / "opt/2025.3.1/ncu")
    found = ncu.find_ncu({"PATH": str(tmp_path / "a/bin")}, tmp_path / "opt")
    assert (found.name, found.path) == ("ncu 2025.3.1", tmp_path / "opt/2025.3.1/ncu")
    with pytest.raises(Unavailable, match=r"ncu was not found: install Nsight Compute"):
        ncu.find_ncu({"PATH": ""}, tmp_path / "nothing")
    fake(tmp_path / "b", "2021.2.0.0")
    with pytest.raises(Unavailable, match=r"ncu 2021\.2\.0 is too old: install 2022\.3 or newer"):
        ncu.find_ncu({"PATH": str(tmp_path / "b/bin")}, tmp_path / "nothing")


def test_sets_are_a_name_or_a_list() -> None:
    assert ncu.selection(["basic"], []) == ["--set", "basic"]
    assert ncu.selection(["SpeedOfLight", "dram__bytes_read.sum"], ["--metrics", "a__b"]) == [
        *("--section", "SpeedOfLight", "--metrics", "a__b,dram__bytes_read.sum")
    ]
