"""Records of ad-hoc sweeps on a disk that is full."""

import resource
from pathlib import Path

import pytest

from kernel_pipeline.errors import UserError
from pipeline.store.runs import Heading, Recorder
from tests.factory import H200, ceilings, environment, measurement


def test_a_full_disk_is_said_once_and_what_was_written_stays(tmp_path: Path) -> None:
    """A limit on a file's size fails as a full disk does: when it is written, and again when it is closed."""
    rows = [measurement("softmax", "torch", size, median_us=3.0) for size in (64, 128)]
    heading = Heading(
        run="20261123T120000Z-abcdef",
        kernel="softmax",
        environment=environment(H200),
        ceilings=ceilings(H200),
    )
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        with (
            pytest.raises(UserError, match="Earlier measurements are kept"),
            Recorder(tmp_path, heading) as one,
        ):
            one.append(rows[0], None)
            whole = one.path.read_bytes()
            resource.setrlimit(resource.RLIMIT_FSIZE, (len(whole) + 10, limits[1]))
            one.append(rows[1], None)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert one.path.read_bytes().startswith(whole)
