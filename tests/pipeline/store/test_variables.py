"""Each variable is in keys or in none, by the list on which it stands."""

import pytest

from kernel_pipeline.machine import fingerprint as environment
from kernel_pipeline.records.variables import BEGINNINGS, COUNTED, is_in_key, is_listed, whose


@pytest.mark.parametrize(
    ("name", "group"),
    [
        ("TORCH_SYMM_MEM_DISABLE_MULTICAST", None),
        ("TORCH_NCCL_ASYNC_ERROR_HANDLING", None),
        ("NCCL_DEBUG", None),
        ("https_proxy", None),
        ("TRITON_CACHE_DIR", None),
        ("TORCH_LOGS", None),
        ("TORCHINDUCTOR_MAX_AUTOTUNE_REPORT_CHOICES_STATS", None),
        ("TORCHINDUCTOR_MAX_AUTOTUNE", "inductor"),
        ("CUBLAS_WORKSPACE_CONFIG", "all"),
        ("TORCH_CUDNN_V8_API_DEBUG", None),
        ("TORCH_CUDNN_V8_API_DISABLED", "all"),
        ("TRITON_PTXAS_PATH", "triton"),
        ("OMP_NUM_THREADS", "cpu"),
        ("KMP_DUPLICATE_LIB_OK", "cpu"),
        ("OMP_DISPLAY_ENV", None),
        ("NUMBA_OPT", "numba"),
        ("NVCC_APPEND_FLAGS", "cuda"),
        ("HOME", None),
    ],
)
def test_a_variable_is_of_the_longest_pattern_that_fits(name: str, group: str | None) -> None:
    assert whose(name) == group
    assert is_listed(name) == (name != "HOME")
    assert is_in_key(name, on_gpu=False) == (group is not None)
    assert is_in_key(name, on_gpu=True) == (group not in (None, "cpu"))


@pytest.mark.parametrize("beginning", BEGINNINGS)
def test_what_stands_on_neither_list_is_in_the_key(beginning: str) -> None:
    name = f"{beginning}NEVER_HEARD_OF"
    if not is_listed(name):
        assert whose(name) == BEGINNINGS[beginning]
        assert is_in_key(name, on_gpu=True) == (BEGINNINGS[beginning] != "cpu")
    assert set(BEGINNINGS.values()) <= COUNTED.keys()


def test_a_variable_on_neither_list_is_named_once(
    tmp_path: object, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(environment, "MET", tmp_path / "variables")  # type: ignore[operator]
    monkeypatch.setenv("TORCH_NEVER_HEARD_OF", "3")
    monkeypatch.setenv("TORCH_SYMM_MEM_DISABLE_MULTICAST", "1")
    for _ in range(2):
        environment.name_unlisted(environment.flags("cuda"))
    said = capsys.readouterr().err
    assert said.count("warning: TORCH_NEVER_HEARD_OF=3 is part of the key") == 1
    assert "MULTICAST" not in said
