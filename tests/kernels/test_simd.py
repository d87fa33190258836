"""What the C++ providers' loops are made of, for each instruction set that this CPU has: a library holds all,
and a provider runs only the widest."""

import ctypes
import subprocess
from collections.abc import Callable

import pytest
import torch

from kernel_pipeline import loading
from kernel_pipeline.machine.compilers import CXX_FLAGS
from kernel_pipeline.machine.fingerprint import find_cxx
from kernel_pipeline.machine.torch_install import installed_torch

SETS = ("baseline", "avx2", "avx512")

SOURCE = """
#include "pieces.h"
#include "vector_math.h"
using namespace kernels;

template <typename F> bool with(int which, const F& f, int64_t count) {
  if (which == 0) return f(Baseline{}, 0, count), true;
#if defined(__x86_64__)
  if (which == 1 && has_avx2()) return with_avx2(f, 0, count), true;
  if (which == 2 && has_avx512()) return with_avx512(f, 0, count), true;
#endif
  return false;
}

#define API extern "C" __attribute__((visibility("default")))

API bool exponentials(int which, const float* x, float* y, int64_t count) {
  return with(which, [=](auto, int64_t begin, int64_t end) KERNELS_INLINE {
    for (int64_t i = begin; i < end; ++i) y[i] = kernels::exp(x[i]);
  }, count);
}
API bool widened(int which, const Half* x, float* y, int64_t count) {
  return with(which, [=](auto set, int64_t, int64_t end) KERNELS_INLINE { widen(set, x, 1, end, y); }, count);
}
API bool narrowed(int which, const float* x, Half* y, int64_t count) {
  return with(which, [=](auto set, int64_t, int64_t end) KERNELS_INLINE { narrow(set, x, y, end); }, count);
}
API bool sum(int which, const float* x, float* y, int64_t count) {
  return with(which, [=](auto, int64_t, int64_t end) KERNELS_INLINE {
    *y = sum_of(x, end, [](auto value) KERNELS_INLINE { return value * value; });
  }, count);
}
"""

Call = Callable[[str, torch.Tensor, torch.Tensor], torch.Tensor]


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    folder = tmp_path_factory.mktemp("simd")
    (folder / "simd.cpp").write_text(SOURCE)
    found = installed_torch().folder
    include = ["-isystem", str(found / "include"), f"-I{loading.ROOT / 'include'}"]
    command = [str(find_cxx().path), *CXX_FLAGS, *include, "simd.cpp", "-shared", "-o", "simd.so"]
    subprocess.run([*command, f"-L{found / 'lib'}", "-ltorch_cpu"], cwd=folder, check=True)
    return ctypes.CDLL(str(folder / "simd.so"))


@pytest.fixture(params=SETS)
def call(request: pytest.FixtureRequest, library: ctypes.CDLL) -> Call:
    def called(name: str, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        function = library[name]
        function.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64]
        function.restype = ctypes.c_bool
        if not function(SETS.index(request.param), x.data_ptr(), y.data_ptr(), x.numel()):
            pytest.skip(f"this CPU has no {request.param}")
        return y

    return called


def test_exp(call: Call) -> None:
    # To where the answer would be subnormal, and to where it is almost infinite.
    x = torch.linspace(-87.3, 88.3, 1_000_003)
    y = call("exponentials", x, torch.empty_like(x)).double()
    assert ((y / x.double().exp() - 1).abs() < 2**-22).all()
    x = torch.tensor([-torch.inf, -3e38, -88.0, 0.0, -0.0, 89.0, 3e38, torch.inf, torch.nan] * 3)
    y = call("exponentials", x, torch.empty_like(x))
    expected = torch.tensor([0, 0, 0, 1, 1, torch.inf, torch.inf, torch.inf, torch.nan] * 3)
    torch.testing.assert_close(y, expected, rtol=0, atol=0, equal_nan=True)


def test_every_float16_is_widened_exactly(call: Call) -> None:
    x = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16).view(torch.float16)
    x = torch.cat([x, x[:5]])  # no multiple of a vector
    y = call("widened", x, torch.empty(x.shape))
    torch.testing.assert_close(y, x.float(), rtol=0, atol=0, equal_nan=True)


def test_float16_is_rounded_to_the_nearest_and_ties_to_even(call: Call) -> None:
    halves = torch.arange(0, 0x7C00, dtype=torch.int16).view(torch.float16).double()
    between = (halves[1:] + halves[:-1]) / 2
    x = torch.cat([between, between * (1 + 2**-20), -between, torch.tensor([65519.0, 65520.0, torch.inf])])
    y = call("narrowed", x.float(), torch.empty(x.shape, dtype=torch.float16))
    assert torch.equal(y, x.float().half())
    nan = torch.full((19,), torch.nan)
    assert call("narrowed", nan, torch.empty(19, dtype=torch.float16)).isnan().all()


@pytest.mark.parametrize("count", [0, 1, 15, 16, 64, 65, 781, 1024])
def test_a_sum_has_every_element_once(call: Call, count: int) -> None:
    x = torch.arange(1, count + 1, dtype=torch.float32) % 7
    assert call("sum", x, torch.empty(1)).item() == x.square().sum().item()
