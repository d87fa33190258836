"""Each provider says which configurations of which problems fit a GPU: the table is ``fits.yaml``."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from kernel_pipeline import loading
from kernel_pipeline.contract import Gpu

GPUS = {
    "h200": Gpu(capability=(9, 0), multiprocessors=132, shared_memory=232448, l2_cache=60 << 20),
    "a100": Gpu(capability=(8, 0), multiprocessors=108, shared_memory=163 << 10, l2_cache=40 << 20),
    "none": None,
}
TABLE = yaml.safe_load((Path(__file__).parent / "fits.yaml").read_text())


@pytest.mark.parametrize(
    ("kernel", "provider", "changed", "values", "reason", "gpu"),
    [
        (kernel, provider, *case, *(() if len(case) == 4 else ("h200",)))
        for kernel, providers in TABLE.items()
        for provider, several in providers.items()
        if provider != "base"
        for case in several
    ],
)
def test_a_provider_says_what_fits(
    kernel: str, provider: str, changed: dict[str, Any], values: dict[str, Any], reason: str | None, gpu: str
) -> None:
    declared = loading.load(kernel).kernel
    asked = declared.provider(provider)
    parameters = None if asked.parameters is None else asked.parameters(**values)
    problem = declared.problem(**{**TABLE[kernel]["base"], **changed})
    assert asked.fits(problem, parameters, GPUS[gpu]) == reason
