"""Definitions, workloads and solutions in flashinfer-bench's format, judged by the real command."""

import ast
import json
import os
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from kernel_pipeline.errors import UserError
from kernel_pipeline.judging import definition, flashinferbench
from kernel_pipeline.judging.flashinferbench_code import FlashInferCode
from kernel_pipeline.judging.folder import write
from kernel_pipeline.machine.device import Device
from kernel_pipeline.records.base import Values
from pipeline.verdicts.judged import Judged, Judgement, Speed, Verified, WorkloadTimes
from pipeline.verdicts.trace import traces
from tests.pipeline.test_judge import JUDGED, is_right, judge

FILES = JUDGED / "flashinfer"
NORM, GEMM = (FILES / "definitions" / f"{name}.json" for name in ("rmsnorm_h96", "gemm_n256_k256"))


def solutions(*names: str) -> str:
    """Return the value of ``submission=``."""
    return ",".join(str(FILES / "solutions" / f"{name}.json") for name in names)


@pytest.mark.slow
def test_right_and_wrong_solutions_are_told_apart_and_traced(tmp_path: Path) -> None:
    before = sorted(FILES.rglob("*"))
    names = ("right", "returns", "leaves_a_row", "triton", "tvm")
    code, found = judge(tmp_path, NORM, submission=solutions(*names), most_workloads=2)
    results = found["results"]
    assert code == 1
    assert [one["batch_size"] for one in found["workloads"]] == [1, 300]
    assert is_right(results["right"]), results["right"]
    assert is_right(results["returns"]), results["returns"]
    assert "workload=rows-1" in " ".join(results["right"]["right"])
    assert results["leaves_a_row"]["verdict"] == "incorrect"
    assert "nan, not" in results["leaves_a_row"]["reason"]  # what a solution does not write is poisoned
    assert (results["triton"]["verdict"], results["triton"]["speed"]) == ("correct", None)
    assert results["tvm"]["verdict"] == "can't be judged"
    assert sorted(FILES.rglob("*")) == before

    made = [json.loads(line) for line in (tmp_path / "judge" / NORM.stem / "traces.jsonl").open()]
    statuses = {one["solution"]: one["evaluation"]["status"] for one in made}
    assert statuses["leaves_a_row"] == "INCORRECT_NUMERICAL"
    assert statuses.get("right", "PASSED") == "PASSED"
    assert not statuses.keys() & {"triton", "tvm"}  # the format has no right solution without a time


CPP = """
#include <torch/extension.h>
void gemm(at::Tensor a, at::Tensor b, at::Tensor c) { at::matmul_out(c, a, b.t()); }
PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) { m.def("gemm", &gemm); }
"""


@pytest.mark.long
@pytest.mark.slow
def test_a_solution_in_cpp_is_compiled_where_its_process_may_write(tmp_path: Path) -> None:
    spec = {
        "language": "cpp",
        "target_hardware": ["cpu"],
        "entry_point": "main.cpp::gemm",
        "binding": "torch",
    }
    made = {"name": "cpp", "definition": GEMM.stem, "author": "a", "spec": spec}
    path = tmp_path / "cpp.json"
    path.write_text(json.dumps(made | {"sources": [{"path": "main.cpp", "content": CPP}]}))
    _, found = judge(tmp_path, GEMM, submission=path, most_workloads=1, rounds=0)
    reasons = ("it is not timed, because rounds=0", "it needs ninja and g++, which this machine lacks")
    assert found["results"]["cpp"]["reason"] in reasons
    if found["isolation"].startswith("isolated"):
        assert not [*(tmp_path / "judge" / GEMM.stem / "build").iterdir()]


@pytest.mark.slow
def test_a_cache_of_outputs_is_a_cheat_and_a_wrong_answer_at_another_size_is_incorrect(
    tmp_path: Path,
) -> None:
    """The cache, by a fingerprint of the inputs, is that of issue 21 of flashinfer-bench-starter-kit."""
    code, found = judge(tmp_path, GEMM, submission=solutions("caches", "multiplies", "tail"))
    assert is_right(found["results"]["multiplies"]), found["results"]["multiplies"]
    tail = found["results"]["tail"]  # right at M=1024, and M is declared as variable
    assert (tail["verdict"], tail["reason"].partition(": ")[0]) == ("incorrect", "M=7")
    assert torch.load(tail["failing"])["inputs"][0].shape == (7, 256)
    assert found["results"]["multiplies"]["right"][-1] == "M=1021, alternating signs"
    caches = found["results"]["caches"]
    assert (code, caches["verdict"]) == (1, "cheats")
    assert caches["reason"].startswith("few changes: ")


def changed(path: Path, *steps: tuple[str, Any]) -> dict[str, Any]:
    """Return a JSON file with other values at places such as ``spec.language``. None removes a place."""
    made: dict[str, Any] = json.loads(path.read_text())
    for place, value in steps:
        *outer, last = place.split(".")
        inner = made
        for name in outer:
            inner = inner[name]
        if value is None:
            del inner[last]
        else:
            inner[last] = value
    return made


@pytest.mark.parametrize(
    ("steps", "says"),
    [
        (
            [("axes.hidden_size", {"type": "const"})],
            "axes.hidden_size: object missing required field `value`",
        ),
        ([("inputs.weight.dtype", "float99")], "inputs.weight.dtype: invalid enum value 'float99'"),
        (
            [("inputs.weight.shape", ["hidden_sise"])],
            "the shape of weight has an unknown axis, 'hidden_sise'",
        ),
        (
            [("outputs.weight", {"shape": None, "dtype": "int8"})],
            "weight can't be both an input and an output",
        ),
        ([("reference", None)], "object missing required field `reference`"),
        ([("reference", "import torch\n")], "reference has no function `run` at its top level"),
        ([("reference", "\ndef run(:\n")], "reference, line 2: invalid syntax"),
        ([("constraints", ["batch_size =="])], "constraints: invalid syntax"),
        ([("axes.class", {"type": "var"})], "axes.class: rename this axis"),
    ],
)
def test_a_wrong_definition_is_one_sentence_with_its_field(
    steps: list[tuple[str, Any]], says: str, tmp_path: Path
) -> None:
    path = tmp_path / "definition.json"
    path.write_text(json.dumps(changed(NORM, *steps)))
    with pytest.raises(UserError) as error:
        definition.definition(path)
    assert str(error.value).startswith(f"{path}: {says}")


@pytest.mark.parametrize(
    ("steps", "says"),
    [
        ([("spec.entry_point", "main.py")], "spec.entry_point: "),
        ([("spec.entry_point", "other.py::run")], "spec.entry_point: other.py is not one of the sources"),
        ([("definition", "other")], "the solution is of other, not of rmsnorm_h96"),
        ([("sources", [{"path": "../main.py", "content": "x"}])], "sources: '../main.py' is not a relative"),
        ([("sources", [{"path": "a.py", "content": "x"}] * 2)], "sources: two files have the path a.py"),
        ([("spec.destination_passing_stile", True)], "spec: object contains unknown field"),
    ],
)
def test_a_wrong_solution_is_one_sentence_with_its_field(
    steps: list[tuple[str, Any]], says: str, tmp_path: Path
) -> None:
    path = tmp_path / "solution.json"
    path.write_text(json.dumps(changed(FILES / "solutions" / "right.json", *steps)))
    with pytest.raises(UserError) as error:
        definition.solution(path, definition.definition(NORM))
    assert str(error.value).startswith(f"{path}: {says}")


@pytest.mark.parametrize(
    ("workload", "says"),
    [
        ({"axes": {}}, "axes has nothing, and not batch_size"),
        ({"axes": {"batch_size": 0}}, "the axes break the constraint `batch_size >= 1`"),
        ({"inputs": {"x": {"type": "random"}}}, "x is not an input of rmsnorm_h96"),
        ({"inputs": {"eps": {"type": "other"}}}, "workload.inputs.eps.type: invalid value 'other'"),
        ({"inputs": {"weight": {"type": "scalar", "value": 1}}}, "weight is a tensor, not a number"),
    ],
)
def test_a_wrong_workload_is_one_sentence_with_its_line(
    workload: dict[str, Any], says: str, tmp_path: Path
) -> None:
    path = tmp_path / "workloads.jsonl"
    right = {"uuid": "one", "axes": {"batch_size": 2}, "inputs": {}}
    lines = (
        {"definition": NORM.stem, "workload": each} for each in (right, right | {"uuid": "2"} | workload)
    )
    path.write_text("\n\n".join(map(json.dumps, lines)))
    with pytest.raises(UserError) as error:
        definition.workloads(path, definition.definition(NORM))
    assert str(error.value).startswith(f"{path}:3: {says}")


def test_workloads_are_found_by_the_folders_and_spread_over_the_sizes(tmp_path: Path) -> None:
    problem = flashinferbench.problem(NORM, None, most=None)
    plan = problem.plan({}, 1.0)
    # The last one is verified for every distribution.
    assert [one["batch_size"] for one in plan.tests] == [1, 300, 33]
    assert [one["batch_size"] for one in problem.plan({}, 0.1).tests] == [1, 30, 16]
    assert {one["batch_size"] for one in problem.plan({"batch_size": 7}, 0.1).tests} == {7}
    assert [*flashinferbench.problem(NORM, None, most=1).workloads] == ["rows-33"]
    with pytest.raises(UserError, match="unknown axis of rmsnorm_h96 'batch'"):
        problem.plan({"batch": 1}, 1.0)
    (alone := tmp_path / "definition.json").write_text(NORM.read_text())
    with pytest.raises(UserError, match=r"there are no workloads of rmsnorm_h96 in .*: write workloads=FILE"):
        flashinferbench.problem(alone, None, most=None)


TAKES = {
    "name": "takes",
    "op_type": "gather",
    "axes": {"rows": {"type": "var"}, "picked": {"type": "var"}, "width": {"type": "const", "value": 4}},
    "inputs": {
        "table": {"shape": ["rows", "width"], "dtype": "float16"},
        "places": {"shape": ["picked"], "dtype": "int32"},
        "scale": {"shape": None, "dtype": "float32"},
    },
    "outputs": {
        "out": {"shape": ["picked", "width"], "dtype": "float16"},
        "total": {"shape": None, "dtype": "float32"},
    },
    "reference": (
        "import torch\n\ndef run(table, places, scale):\n"
        "    out = (table[places].to(torch.float32) * scale).half()\n"
        "    assert out.dtype == torch.float16\n    return out, out.float().sum().item()\n"
    ),
}


def test_stored_inputs_are_used_as_they_are_and_the_reference_computes_in_float64(tmp_path: Path) -> None:
    stored = pytest.importorskip("safetensors.torch")
    for name in ("definitions", "workloads", "blob"):
        (tmp_path / name).mkdir()
    (path := tmp_path / "definitions" / "takes.json").write_text(json.dumps(TAKES))
    source = {"type": "safetensors", "path": "blob/takes.safetensors", "tensor_key": "places"}
    workload = {
        "uuid": "one",
        "axes": {"rows": 64, "picked": 3},
        "inputs": {"places": source, "scale": {"type": "scalar", "value": 0.1}},
    }
    line = {"definition": "takes", "workload": workload}
    (tmp_path / "workloads" / "takes.jsonl").write_text(json.dumps(line))
    with pytest.raises(UserError, match=r"inputs\.places of workload one: there is no file"):
        flashinferbench.problem(path, None, most=8)
    places = torch.tensor([2, 0, 15], dtype=torch.int32)
    stored.save_file({"places": places}, tmp_path / "blob" / "takes.safetensors")

    problem = flashinferbench.problem(path, None, most=8)
    plan = problem.plan({}, 0.25)
    (sizes,) = plan.tests
    assert sizes == Values({"rows": 16, "picked": 3, "workload": "one"})  # a file's axes are not scaled
    assert (plan.resized, plan.fixed) == (("rows",), {"picked": "an input of workload one is in a file"})
    write(tmp_path / "kernel", problem, plan, {})
    code, cpu = FlashInferCode(tmp_path / "kernel"), torch.device("cpu")
    assert code.learn(sizes, cpu) == ()
    (table,), (kept,) = code.inputs(sizes, cpu, 1, ())
    assert torch.equal(kept, places)
    out, total = code.answer(sizes, cpu, ())(table, kept)
    torch.testing.assert_close(out, table.double()[places] * 0.1)
    torch.testing.assert_close(total, out.sum())
    with pytest.raises(UserError, match="picked can't be changed"):
        problem.plan({"picked": 4}, 1.0)


REPOSITORY = Path(os.environ.get("FLASHINFER_BENCH", "flashinfer-bench is not here"))
"""A folder with flashinfer-bench's repository, or with definitions and workloads in its layout."""

is_here = pytest.mark.skipif(
    not REPOSITORY.is_dir(), reason="FLASHINFER_BENCH does not name a folder with flashinfer-bench's files"
)


@pytest.fixture
def theirs(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Their package's models of data, without the rest of the package, which needs a GPU's packages."""
    if (REPOSITORY / "flashinfer_bench").is_dir():
        package = ModuleType("flashinfer_bench")
        package.__path__ = [str(REPOSITORY / "flashinfer_bench")]
        monkeypatch.setitem(sys.modules, "flashinfer_bench", package)
    return pytest.importorskip("flashinfer_bench.data", exc_type=ImportError)


def test_their_own_models_accept_the_traces(theirs: Any) -> None:
    problem = flashinferbench.problem(NORM, None, most=2)
    one, other = problem.plan({}, 0.5).tests
    at = [Values({**each, "distribution": "given"}) for each in (one, other)]
    right = [Verified(problem=each, status="ok", max_abs_err=1e-3, max_rel_err=0.0) for each in at]
    speed = Speed(times=2, low=1.9, high=2.1, decided="faster")
    timed = [
        WorkloadTimes(workload=each, speed=speed, us=20, reference_us=40, rounds=3) for each in (one, other)
    ]
    wrong = {
        "INCORRECT_NUMERICAL": ("incorrect", "3 elements are wrong"),
        "INCORRECT_SHAPE": ("incorrect", "shape is (1,), not (2,)"),
        "INCORRECT_DTYPE": ("incorrect", "dtype is torch.int8, not torch.int32"),
        "RUNTIME_ERROR": ("runtime_error", "it fails: ValueError"),
        "COMPILE_ERROR": ("compile_error", "it fails"),
    }
    failed = [
        Judged(
            submission="x.json",
            verdict="incorrect",
            reason=reason,
            verified=(right[0], Verified(problem=at[1], status=status)),
        )
        for status, reason in wrong.values()
    ]
    file = problem.submission(FILES / "solutions" / "right.json")
    results = (
        Judged(submission="x.json", verdict="correct", verified=tuple(right), timed=tuple(timed)),
        Judged(submission="x.json", verdict="can't be judged", reason="it needs a GPU"),
        *failed,
    )
    found = Judgement(
        problem="p",
        workloads=(one, other),
        scale=1,
        gpu="cpu-x",
        command="c",
        at=datetime.now(UTC),
        isolation="isolated",
        skipped={},
        results=results,
    )
    text = traces(problem, {str(n): file for n in range(len(results))}, found, Device(kind="cpu", name="X"))
    made = [theirs.Trace.model_validate_json(line) for line in text.splitlines()]
    assert [each.evaluation.status.value for each in made] == ["PASSED", "PASSED", *wrong]
    assert made[0].evaluation.performance.speedup_factor == 2
    assert made[0].workload.axes == {"batch_size": 1}
    assert made[1].workload.uuid == "rows-300 batch_size=150"
    assert {each.solution for each in made} == {"right"}


def literal(node: ast.expr) -> Any:
    """Return the plain data of an expression that makes their objects of constants. Raises ValueError for any
    other expression."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        kind = {"AxisConst": {"type": "const"}, "AxisVar": {"type": "var"}}.get(node.func.id, {})
        return kind | {str(one.arg): literal(one.value) for one in node.keywords}
    if isinstance(node, ast.Dict):
        return {literal(key): literal(x) for key, x in zip(node.keys, node.values, strict=True) if key}
    if isinstance(node, ast.List):
        return [literal(one) for one in node.elts]
    return ast.literal_eval(node)


def written(folder: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the definitions in a repository, with their places: files of JSON, and constants in its tests."""
    for path in sorted(folder.rglob("definitions/**/*.json")):
        yield str(path), json.loads(path.read_text())
    for path in sorted(folder.glob("tests/**/*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Name)
                and node.func.id == "Definition"
            ):
                try:
                    yield f"{path}:{node.lineno}", literal(node)
                except ValueError:
                    continue  # its values are computed


@is_here
def test_their_definitions_and_workloads_are_read(tmp_path: Path, theirs: Any) -> None:
    """All are read that their own models accept, except for a reference without a tensor to compare."""
    read = 0
    for place, data in written(REPOSITORY):
        (path := tmp_path / "definition.json").write_text(json.dumps(data))
        try:
            definition.definition(path)
            read += 1
        except UserError as error:
            if "one input that is a tensor" not in str(error):
                with pytest.raises(ValueError, match=r".*"):
                    theirs.Definition.model_validate(data)
                    pytest.fail(f"{place}: {error}")
    print(f"{read} definitions were read")
    assert read
    for path in sorted(REPOSITORY.rglob("definitions/**/*.json")):
        with_workloads = next(flashinferbench.places(path))
        if with_workloads.is_file():
            assert definition.workloads(with_workloads, definition.definition(path))
