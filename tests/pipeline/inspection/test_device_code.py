"""The operations of a call on the GPU, from machine code of Triton's compiler and traces made by hand."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from kernel_pipeline import loading
from kernel_pipeline.records.base import Values
from kernel_pipeline.records.point import Point
from pipeline import ROOT
from pipeline.inspection import device_code
from pipeline.inspection.device_code import CodeQuestion, DeviceCode
from pipeline.verdicts.rounds import Candidate, Match, Side
from tests.pipeline.inspection.traces import kernel_event
from tests.processes import completed

KERNEL = """
import triton
import triton.language as tl


@triton.jit
def square(x, out, n, block: tl.constexpr):
    at = tl.arange(0, block)
    values = tl.load(x + at, at < n)
    tl.store(out + at, values * values, at < n)
"""


COMPILES = """
import importlib.util, json, sys
import triton
from pipeline.inspection import device_code

found = []
for path in sys.argv[1:]:
    spec = importlib.util.spec_from_file_location("own", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    signature = {"x": "*fp32", "out": "*fp32", "n": "i32", "block": "constexpr"}
    source = triton.compiler.ASTSource(module.square, signature, {(3,): 512})
    made = triton.compile(source, target=triton.backends.compiler.GPUTarget("cuda", 90, 32))
    found.append(device_code.machine_code(made.asm["cubin"]))
print(json.dumps(found))
"""
"""Compiles each file's kernel for an H100: in a process of its own, because tests interpret Triton."""


@pytest.mark.slow
def test_machine_code_ignores_lines_and_names_and_sees_an_instruction(tmp_path: Path) -> None:
    texts = [
        KERNEL,
        KERNEL.replace("values", "numbers").replace("    at =", "\n    # the places\n    at ="),
        KERNEL.replace("* values", "+ values"),
        KERNEL.replace("* values", "* 3.25"),
        KERNEL.replace("* values", "* 3.5"),
    ]
    paths = [tmp_path / f"{number}.py" for number in range(len(texts))]
    for path, text in zip(paths, texts, strict=True):
        path.write_text(text)
    variables = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    done = completed(
        [sys.executable, "-c", COMPILES, *paths],
        cwd=ROOT,
        env=variables | {"TRITON_CACHE_DIR": str(tmp_path / "cache")},
    )
    assert done.returncode == 0, done.stderr
    first, moved, added, *constants = json.loads(done.stdout)
    assert list(first) == ["square"]
    assert moved == first
    assert len({one["square"] for one in (first, added, *constants)}) == 4, "a constant is code, too"


def trace() -> dict[str, Any]:
    call = {"ph": "X", "cat": "cuda_runtime", "tid": 1, "dur": 5.0}
    done = {"ph": "X", "tid": 7, "dur": 2.0}
    return {
        "traceEvents": [
            *kernel_event("square", 1, 10.0, 3.5),
            call | {"name": "cudaMemsetAsync", "ts": 1.0, "args": {"correlation": 2}},
            done
            | {"cat": "gpu_memset", "name": "Memset", "ts": 2.0, "args": {"correlation": 2, "bytes": 64}},
            call | {"name": "cudaDeviceSynchronize", "ts": 90.0, "args": {"correlation": 3}},
        ]
    }


def test_operations_have_their_sizes_and_none_may_be_lost() -> None:
    found = device_code.operations(trace())
    assert found is not None
    memset, kernel = found
    assert memset.startswith("Memset ") and memset.endswith("bytes 64")
    assert "grid [64, 2, 1] block [128, 1, 1] shared memory 48" in kernel
    for name, value in (("grid", [64, 1, 1]), ("block", [256, 1, 1]), ("shared memory", 0)):
        other = trace()
        other["traceEvents"][1]["args"][name] = value
        assert device_code.operations(other) != found, name
    larger = trace()
    larger["traceEvents"][3]["args"]["bytes"] = 128
    assert device_code.operations(larger) != found
    for lost in (1, 3):
        less = trace()
        del less["traceEvents"][lost]
        assert device_code.operations(less) is None
    assert device_code.operations({"traceEvents": []}) is None


def test_only_equal_and_known_records_are_the_same_code(monkeypatch: pytest.MonkeyPatch) -> None:
    def match(provider: str, columns: int) -> Match:
        point = Point(kernel="square", provider=provider, problem=Values({"columns": columns}))
        return Match(tuple(Candidate(Side(name, Path(name), "square"), point, name) for name in "ab"))

    def known(root: Path, questions: Sequence[CodeQuestion], begun: object) -> device_code.Known:
        records = {
            1: DeviceCode(operations=("one",), code={"one": "x"}),
            2: DeviceCode(operations=("one",), code={"one": root.name}),
            3: DeviceCode(operations=(root.name,), code={"one": "x"}),
        }
        return {
            point: records.get(int(str(point.problem["columns"])))
            for question in questions
            for point in question.points
        }

    monkeypatch.setattr(device_code, "begin", lambda root, questions: nullcontext())
    monkeypatch.setattr(device_code, "records", known)
    kernel = loading.load("square").kernel
    matches = [match("triton_flat", columns) for columns in (1, 2, 3, 4)]
    asked = [(kernel, [*matches, match("torch_mul", 1)])]
    assert device_code.same(asked, "cuda:0", 0) == {matches[0]}
    assert device_code.same([(kernel, [match("torch_mul", 1)])], "cuda:0", 0) == set()


DIES = f"""
import os, sys
from pipeline.inspection.device_code import CodeAnswers, CodeQuestion, DeviceCode

for question in map(CodeQuestion.from_json, sys.stdin):
    if question.where == "dies":
        os.abort()
    found = CodeAnswers(each=(DeviceCode(operations=(question.where,), code={{}}),))
    print("a provider prints this")
    print("{device_code.ANSWER}" + found.to_json().decode(), flush=True)
    if question.where == "breaks":
        break
"""


def test_a_kernel_that_ends_its_process_is_not_known_and_the_others_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A kernel that breaks the device answers before its process ends, and a kernel that crashes does not."""
    (tmp_path / "side.py").write_text(DIES)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setattr(device_code, "__name__", "side")
    names = ("one", "breaks", "two", "dies", "three")
    asked = [
        CodeQuestion(
            where=name,
            device="cuda:0",
            seed=0,
            points=(Point(kernel=name, provider="cuda", problem=Values({"columns": 1})),),
        )
        for name in names
    ]
    with device_code.begin(tmp_path, asked) as begun:
        found = device_code.records(tmp_path, asked, begun)
    assert [point.kernel for point in found] == ["one", "breaks", "two", "three"]
