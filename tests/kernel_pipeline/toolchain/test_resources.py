import pytest

from kernel_pipeline.toolchain.resources import parse
from tests.kernel_pipeline.toolchain.tiny import needs_nvcc

LOG = """\
a warning of another kind
ptxas info    : 28 bytes gmem, 224 bytes cmem[4]
ptxas info    : Compiling entry function '_Z1gIiEvT_' for 'sm_100'
ptxas info    : Function properties for _Z1gIiEvT_
    24 bytes stack frame, 20 bytes spill stores, 16 bytes spill loads
ptxas info    : Used 64 registers, used 1 barriers, 24 bytes cumulative stack size, 256 bytes smem
ptxas info    : Compiling entry function '_Z1gIiEvT_' for 'sm_80'
ptxas info    : Function properties for _Z6helperv
    8 bytes stack frame, 4 bytes spill stores, 4 bytes spill loads
ptxas info    : Function properties for _Z1gIiEvT_
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 30 registers, used 0 barriers, 380 bytes cmem[0], 8 bytes cmem[2]
"""


@needs_nvcc
def test_parse() -> None:
    first, second = parse(LOG, "k", "kernels/k/cuda.cu")
    assert first.to_dict() == {
        "kernel": "k",
        "source": "kernels/k/cuda.cu",
        "function": "g<int>",
        "symbol": "_Z1gIiEvT_",
        "architecture": "sm_80",
        "registers": 30,
        "shared": 0,
        "stack": 0,
        "spill_stores": 0,
        "spill_loads": 0,
        "constant": 388,
    }
    assert (second.architecture, second.registers, second.shared, second.stack) == ("sm_100", 64, 256, 24)
    assert (second.spill_stores, second.spill_loads, second.constant) == (20, 16, None)


@needs_nvcc
@pytest.mark.parametrize("log", ["", "nvcc warning : nothing to see\n"])
def test_no_functions(log: str) -> None:
    assert parse(log, "k", "kernels/k/cuda.cu") == []
