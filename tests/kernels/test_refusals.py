"""Entries refuse inputs that don't fit together, with a sentence."""

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
import torch

from kernel_pipeline import loading

Inputs = tuple[torch.Tensor, ...]

INT4 = (
    "triton_gemm",
    "triton_split_k",
    "triton_gemv",
    "triton_dequantise",
    "cuda",
    "cuda_wgmma",
    "cuda_stream_k",
)
DIMENSIONS: dict[str, dict[str, int]] = {
    "matmul_int4": {"m": 2, "n": 16, "k": 128},
    "matmul_sparse": {"m": 2, "n": 16, "k": 64},
    "sparsify": {"n": 4, "k": 4},
}


@pytest.mark.parametrize(
    ("kernel", "providers", "changed", "sentence"),
    [
        ("matmul_int4", INT4, lambda x, packed, scales: (x[0], packed, scales), r"needs x \(m, k\)"),
        ("matmul_int4", INT4, lambda x, packed, scales: (x, packed.long(), scales), "int32 weights"),
        ("matmul_int4", INT4, lambda x, packed, scales: (x, packed[:1], scales), r"weights \(2, 1, 32, 4\)"),
        ("matmul_int4", INT4, lambda x, packed, pairs: (x, packed, pairs[:, :, :1]), r"scales \(1, 16, 2\)"),
        ("matmul_int4", INT4, lambda x, packed, scales: (x.half(), packed, scales), "float16 and bfloat16"),
        ("matmul_sparse", (), lambda x, values, metadata: (x[0], values, metadata), r"needs x \(m, k\)"),
        ("matmul_sparse", (), lambda x, values, metadata: (x, values, metadata.long()), "int32 for metadata"),
        ("matmul_sparse", (), lambda x, values, metadata: (x, values[:, :8], metadata), r"values \(16, 32\)"),
        ("matmul_sparse", (), lambda x, values, meta: (x, values, meta[:, :, :8]), r"metadata \(1, 1, 32\)"),
        ("matmul_sparse", (), lambda x, values, words: (x.half(), values, words), "float16, bfloat16, int32"),
        ("sparsify", ("torch", "triton"), lambda w: (w.float(),), "got float32"),
        ("sparsify", ("torch", "triton"), lambda w: (w[0],), r"needs weights \(n, k\)"),
    ],
)
def test_inputs_that_do_not_fit_together_are_refused(
    kernel: str, providers: tuple[str, ...], changed: Callable[..., Inputs], sentence: str
) -> None:
    loaded = loading.load(kernel)
    problem = loaded.kernel.problem(**DIMENSIONS[kernel])
    inputs = changed(*loaded.inputs(problem, torch.device("cpu"), 0))
    arguments: dict[str, Any] = loaded.arguments(problem)
    for name in providers or ("triton_gemm", "cuda", "cuda_wgmma"):
        provider = loaded.kernel.provider(name)
        parameters = {} if provider.parameters is None else dataclasses.asdict(provider.parameters())
        with pytest.raises(ValueError, match=sentence):
            getattr(loaded.module(provider.file), provider.function)(*inputs, **arguments, **parameters)
