"""A worker on a CPU keeps the memory that calls free, so that no call needs new pages."""

import sys

import pytest

from tests.processes import completed

FAULTS = """
import os, resource

import torch

from kernel_pipeline.execution.provider_runner import ProviderRunner
from kernel_pipeline.records.settings import TimingSettings

WARMED
x = torch.ones(1 << 24)
faults = []
for _ in range(4):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    x.square()
    faults.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
print(min(faults))
"""

WARMED = 'ProviderRunner("cpu", TimingSettings(), os.memfd_create("test"), lambda: None).warm_up()'


@pytest.mark.slow
def test_calls_in_a_warm_worker_cause_no_page_faults() -> None:
    def faults(warmed: str) -> int:
        return int(completed([sys.executable, "-c", FAULTS.replace("WARMED", warmed)], check=True).stdout)

    assert faults("") > 1000, "64 MiB come from Linux at each call by default"
    assert faults(WARMED) < 10
