"""Problems of the three repositories, judged unedited by the real command on a CPU, at reduced sizes.

Their files are not in this repository. Each environment variable names a copy of a repository:

- ``KERNELBENCH``: ScalingIntelligence/KernelBench.
- ``KERNELBOT_TASKS``: the folder ``problems`` of gpu-mode/reference-kernels.
- ``FLASHINFER_BENCH``: flashinfer-ai/flashinfer-bench before 25 April 2026 (commit 6569a4d6), with the folder
  ``flashinfer_trace``; or a folder of that name from the data set flashinfer-ai/flashinfer-trace.
"""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.pipeline import test_judge

RIGHT = "it is not timed, because rounds=0"
"""The reason for a missing time of a correct submission."""

ANY = "any answer passes this problem"
RANDOM = "its answer is random"
NEVER_ROUNDS = "its own code never rounds"


def repository(variable: str, folder: str) -> tuple[Path, pytest.MarkDecorator]:
    """Return the folder in a repository that an environment variable names, and the mark that skips a test
    without it."""
    path = Path(os.environ.get(variable, f"{variable} is not set")) / folder
    return path, pytest.mark.skipif(not path.is_dir(), reason=f"{variable} names no copy of a repository")


def judge(output: Path, problem: Path, **options: object) -> dict[str, Any]:
    """Judge without times. A hot cache needs one set of inputs, and not many."""
    _, found = test_judge.judge(output, problem, rounds=0, **{"timing.cache": "hot"}, **options)
    return found


def check(found: Mapping[str, Any], says: str) -> None:
    """Check that the problem's own code is correct, or named as a problem that can't be judged."""
    (one,) = found["results"].values()
    assert one["verdict"] == ("correct" if says is RIGHT else "can't be judged"), one
    assert says in one["reason"]


KERNELBENCH, with_kernelbench = repository("KERNELBENCH", "KernelBench")

PROBLEMS: dict[str, tuple[str, dict[str, int]]] = {
    "level1/33_": (RIGHT, {}),  # a normalization with running statistics
    "level1/42_": (RIGHT, {}),  # pooling
    "level1/82_": (RIGHT, {}),  # a depthwise convolution
    "level1/95_": (RIGHT, {}),  # a loss of class labels
    "level1/97_": (RIGHT, {}),  # attention
    "level2/12_": (RIGHT, {}),  # a matrix product with weights
    "level2/23_": (ANY, {}),  # the mean of normalized values
    "level2/80_": (ANY, {}),  # a number less its own mean
    "level3/4_": (RIGHT, {}),  # a small network
    "level3/43_": (RIGHT, {}),  # causal attention with weights
}
"""Ten problems by the beginnings of their names, with the expected reason and the sizes."""


@pytest.mark.slow
@with_kernelbench
@pytest.mark.parametrize("name", PROBLEMS)
def test_problems_of_kernelbench(name: str, tmp_path: Path) -> None:
    (problem,) = KERNELBENCH.glob(f"{name}*.py")
    says, sizes = PROBLEMS[name]
    found = judge(tmp_path, problem, scale=1 / 4096, **sizes)
    check(found, says)


ZEROS = """
class ModelNew(Model):
    def forward(self, *inputs):
        return torch.zeros_like(super().forward(*inputs))
"""


@pytest.mark.slow
@with_kernelbench
@pytest.mark.parametrize("name", ["23_Softmax", "37_FrobeniusNorm_", "39_L2Norm_", "53_Min_reduction"])
def test_zeros_are_wrong_where_kernelbench_accepts_them(name: str, tmp_path: Path) -> None:
    """The four problems of KernelBench's issue 165."""
    (problem,) = KERNELBENCH.glob(f"level1/{name}*.py")
    text, by = problem.read_text(), []
    for stem, end in (("zeros", ZEROS), ("right", "class ModelNew(Model): ...\n")):
        by.append(tmp_path / f"{stem}.py")
        by[-1].write_text(f"{text}\n\n{end}")
    found = judge(tmp_path, problem, scale=1 / 64, submission=",".join(map(str, by)))
    verdicts = {stem: one["verdict"] for stem, one in found["results"].items()}
    assert verdicts == {"zeros": "incorrect", "right": "correct"}, found["results"]


KERNELBOT, with_kernelbot = repository("KERNELBOT_TASKS", "")

TASKS = {
    "amd/fp8-mm": RIGHT,
    "amd/identity": ANY,
    "helion/causal_conv1d_py": RIGHT,
    "helion/fp8_quant_py": NEVER_ROUNDS,
    "helion/gated_deltanet_chunk_fwd_o_py": RIGHT,
    "pmpp/grayscale_py": RIGHT,
    "pmpp_v2/histogram_py": RIGHT,
    "pmpp_v2/matmul_py": RIGHT,
    "pmpp_v2/sort_py": RIGHT,
    "pmpp_v2/vectorsum_py": RIGHT,
}
"""Ten tasks, with the expected reason."""


@pytest.mark.slow
@with_kernelbot
@pytest.mark.parametrize("name", TASKS)
def test_tasks_of_kernelbot(name: str, tmp_path: Path) -> None:
    found = judge(tmp_path, KERNELBOT / name, scale=1 / 64)
    check(found, TASKS[name])


TRACE, with_trace = repository("FLASHINFER_BENCH", "flashinfer_trace")

OWN_WORKLOADS = (
    *("gemm/gemm_n128_k2048", "gemm/gemm_n256_k7168", "rmsnorm/rmsnorm_h128", "rmsnorm/rmsnorm_h1536"),
    "rmsnorm/fused_add_rmsnorm_h2048",
)
"""Definitions that are judged with workloads of the data set."""

STARTS, PAGES = [0, 3, 10], [4, 0, 2, 5, 1, 3, 7, 9, 6, 8]

WORKLOADS: dict[str, tuple[str, dict[str, int], dict[str, Any]]] = {
    "gdn/gdn_decode_qk4_v8_d128_k_last": (RIGHT, {"batch_size": 2}, {"scale": 0.088}),
    "rope/rope_with_cos_sin_cache_neox_style_d128_rd64": (
        RIGHT,
        {"num_tokens": 9, "num_qo_heads": 2, "num_kv_heads": 1, "max_seq_len": 1024},
        {},
    ),
    "sampling/top_k_sampling_from_probs_v128256": (RANDOM, {"batch_size": 1}, {}),
    "gqa_ragged/gqa_ragged_prefill_causal_h5_kv1_d128": (
        RIGHT,
        {"len_indptr": 3, "total_q": 10, "total_kv": 10},
        {"qo_indptr": STARTS, "kv_indptr": STARTS, "sm_scale": 0.088},
    ),
    "gqa_paged/gqa_paged_decode_h5_kv1_d128_ps1": (
        RIGHT,
        {"batch_size": 2, "num_pages": 10, "len_indptr": 3, "num_kv_indices": 10},
        {"kv_indptr": STARTS, "kv_indices": PAGES, "sm_scale": 0.088},
    ),
}
"""Definitions without small workloads, with the expected reason, and the axes and the inputs of a workload of
our own. A list becomes a stored tensor."""


@pytest.mark.slow
@with_trace
@pytest.mark.parametrize("name", OWN_WORKLOADS)
def test_definitions_with_workloads_of_the_data_set(name: str, tmp_path: Path) -> None:
    definition = TRACE / "definitions" / f"{name}.json"
    found = judge(tmp_path, definition, most_workloads=1, scale=1 / 64)
    check(found, RIGHT)


@pytest.mark.slow
@with_trace
@pytest.mark.parametrize("name", WORKLOADS)
def test_definitions_with_a_workload_of_our_own(name: str, tmp_path: Path) -> None:
    says, axes, values = WORKLOADS[name]
    definition = TRACE / "definitions" / f"{name}.json"
    inputs: dict[str, Any] = {one: {"type": "random"} for one in json.loads(definition.read_text())["inputs"]}
    for one, value in values.items():
        if isinstance(value, list):
            stored = pytest.importorskip("safetensors.torch")
            stored.save_file({one: torch.tensor(value, dtype=torch.int32)}, tmp_path / one)
            inputs[one] = {"type": "safetensors", "path": one, "tensor_key": one}
        else:
            inputs[one] = {"type": "scalar", "value": value}
    workload = {"uuid": "one", "axes": axes, "inputs": inputs}
    (path := tmp_path / "workloads.jsonl").write_text(
        json.dumps({"definition": definition.stem, "workload": workload})
    )
    found = judge(tmp_path, definition, workloads=path)
    check(found, says)
