"""Which environment variables a provider may not leave changed."""

from __future__ import annotations

import pytest

from pipeline.store.variables import is_in_key


@pytest.mark.parametrize(
    ("variable", "on_cpu", "on_gpu"),
    [
        ("KMP_DUPLICATE_LIB_OK", True, False),
        ("OMP_NUM_THREADS", True, False),
        ("NVIDIA_TF32_OVERRIDE", True, True),
        ("TRITON_DISABLE_LINE_INFO", True, True),
        ("NUMBA_OPT", True, True),
        ("TRITON_CACHE_DIR", False, False),
        ("HOME", False, False),
    ],
)
def test_no_key_of_a_gpu_holds_a_cpus_threads(variable: str, on_cpu: bool, on_gpu: bool) -> None:
    assert (is_in_key(variable, False), is_in_key(variable, True)) == (on_cpu, on_gpu)
