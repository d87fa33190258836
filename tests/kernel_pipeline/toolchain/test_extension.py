import re
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
import torch

from kernel_pipeline import loading
from kernel_pipeline.errors import UserError
from kernel_pipeline.machine import fingerprint as environment
from kernel_pipeline.machine.torch_install import installed_torch
from kernel_pipeline.toolchain import extension
from kernel_pipeline.toolchain.extension import (
    Place,
    build,
    is_cuda,
    load,
    manifest,
    sources,
    with_architecture,
)
from kernel_pipeline.toolchain.ninja_build import CompileError, LibraryBuild, compile_all
from kernel_pipeline.toolchain.resources import resources
from pipeline import ROOT
from pipeline.inspection.library import CudaFunction, library_of
from tests.kernel_pipeline.toolchain.tiny import (
    CPP,
    CUDA,
    cuda_code,
    make,
    needs_nvcc,
    place,
    state,
    touch_all,
    value,
)


def built_of(kernel: str) -> pytest.MarkDecorator:
    """Put all tests that need the build of a kernel's CUDA library into one xdist group."""
    return pytest.mark.xdist_group(f"{kernel}/cuda.cu")


WITH_CUDA = [
    pytest.param(name, source, marks=built_of(name))
    for name in loading.names()
    for source in sources(loading.load(name))
    if is_cuda(source)
]


@cache
def functions_of(kernel: str) -> list[CudaFunction]:
    """Return the functions in a kernel's library for compute capability 9.0."""
    found, _ = library_of(loading.load(kernel), "cuda.cu").functions("90")
    return found


@pytest.fixture
def project(tmp_path: Path) -> Place:
    return make(tmp_path)


@pytest.fixture
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extension, "_capabilities", list)


def cpp(project: Place) -> extension.Library:
    return build(project, [CPP])[CPP]


def cuda(project: Place, architectures: Sequence[str] | None = None) -> extension.Library:
    return build(project, [CUDA], architectures)[CUDA]


@needs_nvcc
@pytest.mark.slow  # each build takes up to a minute
@pytest.mark.parametrize(("kernel", "source"), WITH_CUDA)
def test_every_kernel_compiles_for_the_architectures_of_its_last_build(kernel: str, source: str) -> None:
    """Without an earlier build, the architecture is Hopper's. Before the tests, CI builds all kernels for
    A100, H100 and B200."""
    here = Place.for_kernel(loading.load(kernel))
    library = build(here, [source])[source]
    wanted = {int(name) for name in library.architectures}
    assert wanted
    held = {(kind, architecture) for kind in ("elf", "ptx") for architecture in wanted}
    assert set(cuda_code(library.path)) == held
    text = (ROOT / "kernels" / kernel / source).read_text()
    functions = re.findall(
        r"__global__ void\s+(?:__launch_bounds__\((?:[^()]|\([^()]*\))*\)\s+)?(\w+)\(", text
    )
    rows = resources(here, source)
    named = {f"sm_{here.architecture(source, str(architecture))}" for architecture in wanted}
    assert {row.architecture for row in rows} == named
    for architecture in named:
        names = [row.function for row in rows if row.architecture == architecture]
        assert len(names) == len(set(names)) > 0
        assert all(any(f"::{function}<" in name for name in names) for function in functions)
    # A block of 1024 threads leaves 64 registers per thread, so some row kernels spill a few words. The warps
    # of attention's backward pass that copy have 24 registers, since those that multiply take the others.
    most = 168 if kernel == "attention_backward" else 72
    assert all(max(row.spill_stores, row.spill_loads) <= most for row in rows)


@pytest.mark.slow
@needs_nvcc
@pytest.mark.parametrize(
    "kernel", [pytest.param(name, marks=built_of(name)) for name in ("layernorm", "rmsnorm")]
)
def test_realigned_parameters_are_read_after_the_wait_for_them(kernel: str) -> None:
    """The compiler could move read-only loads before the wait, so no wide load may be read-only."""
    realigned = [one for one in functions_of(kernel) if "RealignedParameters" in one.name]
    in_registers = [one for one in realigned if one.name.startswith("register_resident_rows")]
    assert in_registers
    assert len(in_registers) < len(realigned)
    for function in realigned:
        opcodes = [one.opcode for one in function.analysis.instructions]
        assert opcodes.count("ACQBULK") == 1, "the wait"
        wide = [at for at, opcode in enumerate(opcodes) if opcode.startswith("LDG.") and ".128" in opcode]
        assert not [opcodes[at] for at in wide if "CONSTANT" in opcodes[at]], function.name
        if function in in_registers:
            # In register_resident_rows<T, V, K, ...>, K loads of the row precede the wait.
            vectors = int(function.name.split(", ")[2])
            assert sum(at < opcodes.index("ACQBULK") for at in wide) == vectors, function.name


@pytest.mark.slow
@needs_nvcc
@pytest.mark.parametrize(
    ("kernel", "tensors"),
    [
        pytest.param("layernorm", 2, marks=built_of("layernorm")),
        pytest.param("rmsnorm", 1, marks=built_of("rmsnorm")),
    ],
)
def test_persistent_kernels_read_weights_once_and_spill_nothing(kernel: str, tensors: int) -> None:
    """Spilled registers would cost these kernels a sixth of their speed, and direct stores from registers
    a third."""
    persistent = [one for one in functions_of(kernel) if one.name.startswith("persistent_rows")]
    assert len(persistent) == 6
    for function in persistent:
        opcodes = [one.opcode for one in function.analysis.instructions]
        kinds = Counter(opcode.split(".")[0] for opcode in opcodes)
        assert not {"LDL", "STL"} & set(kinds), function.name
        assert {"UBLKCP.S.G", "UBLKCP.G.S"} <= set(opcodes)
        loads = [at for at, opcode in enumerate(opcodes) if opcode.startswith("LDG.")]
        wide = [at for at in loads if ".128" in opcodes[at]]
        # The names start with persistent_rows<T, kPeel, ...>.
        if function.name.split(", ")[1] == "0":
            assert kinds["STG"] == 0, function.name
            assert len(loads) == len(wide) == 8 * tensors, "8 vectors of each"
            assert max(loads) < opcodes.index("UBLKCP.G.S")
        else:
            assert [opcode for opcode in opcodes if opcode.startswith("STG") and ".128" in opcode] == []
            assert kinds["STG"] == 1, "of a scalar of the row"
            # The weights are read at the start, and again for rows with another alignment. Each time, a
            # vector takes two wide loads and the scalar takes one load.
            assert (len(wide), len(loads)) == (2 * 2 * 8 * tensors, 2 * (2 * 8 + 1) * tensors)


@needs_nvcc
@pytest.mark.usefixtures("no_gpu")
def test_the_compiler_from_pypi_without_a_system_one(project: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("CUDA_HOME", "CUDA_PATH"):
        monkeypatch.delenv(variable, raising=False)
    path = [folder for folder in ("/usr/bin", "/bin") if not Path(folder, "nvcc").exists()]
    monkeypatch.setenv("PATH", ":".join(path))
    monkeypatch.setattr(environment.find_nvcc, "__defaults__", (None, Path("/nonexistent")))
    try:
        nvcc = environment.find_nvcc()
    except UserError:
        pytest.skip("the CUDA compiler from PyPI is not installed")
    assert nvcc.path.parts[-4:-2] == ("nvidia", nvcc.path.parts[-3])
    assert nvcc.path.is_relative_to(Path(torch.__file__).parents[1])
    library = cuda(project, ["80"])
    assert cuda_code(library.path) == [("elf", 80)]
    assert [row.function for row in resources(project, CUDA)] == ["tiny::add<float>"]


@pytest.mark.slow
@needs_nvcc
@pytest.mark.usefixtures("no_gpu")
def test_architectures(project: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    assert cuda(project, ["80", "90", "80"]).architectures == ("80", "90")
    assert not cuda(project).built, "None means what the library was built for last"
    unknown = cuda(project, ["80", "9999"])
    assert (unknown.built, unknown.architectures, unknown.skipped) == (True, ("80",), ("9999",))
    with pytest.raises(UserError, match=r"can't compile for sm_9999; it knows sm_\d+, .*sm_90"):
        cuda(project, ["9999"])
    monkeypatch.setattr(extension, "_capabilities", lambda: ["86", "90"])
    assert cuda(project).architectures == ("80", "90"), "code for 8.0 runs on 8.6"
    monkeypatch.setattr(extension, "_capabilities", lambda: ["9998"])
    with pytest.raises(UserError, match=r"can't compile for sm_9998; "):
        cuda(project)


@pytest.mark.parametrize(
    ("architectures", "capability", "added"),
    [
        (["80", "90"], "80", False),
        (["80", "90"], "89", False),
        (["80", "90"], "75", True),
        (["86"], "80", True),
        (["90", "100"], "120", True),
        (["90", "100"], "103", False),
        (["90a"], "90", True),
    ],
)
def test_with_architecture(architectures: list[str], capability: str, added: bool) -> None:
    expected = (*architectures, capability) if added else tuple(architectures)
    assert with_architecture(architectures, capability) == expected


def test_a_second_build_writes_nothing_whatever_the_file_times(project: Place) -> None:
    assert cpp(project).built
    touch_all(project.root)
    before = state(project.output)
    assert not cpp(project).built
    assert state(project.output) == before


@pytest.mark.slow
@needs_nvcc
@pytest.mark.usefixtures("no_gpu")
def test_a_build_from_nothing_gives_the_same_files(project: Place) -> None:
    def contents() -> dict[str, bytes]:
        build(project, [CPP, CUDA], ["80"])
        return {name: content for name, (_, content) in state(project.output).items()}

    first = contents()
    for path in project.output.iterdir():
        path.unlink()
    assert contents() == first


@pytest.mark.parametrize("name", ["tiny/cpp.cpp", "include/value.h"])
def test_an_edit_is_built_whatever_the_file_times(project: Place, name: str) -> None:
    assert value(cpp(project).path) == 1
    path = project.root / "kernels" / name
    path.write_text(
        path.read_text().replace("VALUE 1", "VALUE 2").replace("return VALUE", "return VALUE + 1")
    )
    touch_all(project.root)
    library = cpp(project)
    assert library.built
    assert value(library.path) == 2


def test_a_file_that_did_not_go_in_does_not_count(project: Place) -> None:
    cpp(project)
    (project.root / "kernels/tiny/cuda.cu").write_text("nonsense")
    (project.root / "kernels/include/other.h").write_text("nonsense")
    assert not cpp(project).built


@pytest.mark.parametrize("suffix", [".so", ".json", ".log"])
@pytest.mark.parametrize("damage", ["missing", "short"])
def test_a_damaged_folder_is_built_again(project: Place, suffix: str, damage: str) -> None:
    path = project.target(CPP, suffix)
    assert cpp(project).path.with_suffix(suffix) == path
    if damage == "missing":
        path.unlink()
    else:
        path.write_bytes(path.read_bytes()[:100])
    assert cpp(project).built is not (damage == "short" and suffix == ".log")
    assert value(cpp(project).path) == 1


def test_another_compiler_or_torch_is_a_reason_to_build(
    project: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    cpp(project)
    other = replace(installed_torch(), version="9.9.9")
    monkeypatch.setattr(extension, "installed_torch", lambda: other)
    assert cpp(project).built
    found = environment.find_cxx()
    monkeypatch.setattr(extension, "find_cxx", lambda: environment.Cxx(found.path, "g++ 99"))
    assert cpp(project).built
    made = manifest(project, CPP)
    assert made is not None
    assert (made.recipe.torch, made.recipe.compilers) == ("9.9.9", ("g++ 99",))


def test_a_broken_source_gives_the_compilers_message(project: Place) -> None:
    path = project.root / "kernels/tiny/cpp.cpp"
    good = path.read_text()
    path.write_text("int f() { return nosuch; }\n")
    with pytest.raises(CompileError) as caught:
        cpp(project)
    first, second, *_ = str(caught.value).splitlines()
    assert first == "kernels/tiny/cpp.cpp does not compile:"
    assert "kernels/tiny/cpp.cpp" in second
    assert "nosuch" in str(caught.value)
    assert "ninja" not in str(caught.value)
    path.write_text(good)
    assert cpp(project).built


@needs_nvcc
@pytest.mark.usefixtures("no_gpu")
def test_every_broken_source_is_named(project: Place) -> None:
    for name, text in (("cpp.cpp", "int f() { return nosuch; }\n"), ("cuda.cu", "__global__ int f() {}\n")):
        (project.root / "kernels/tiny" / name).write_text(text)
    with pytest.raises(CompileError) as caught:
        build(project, [CPP, CUDA], ["80"])
    assert "kernels/tiny/cuda.cu does not compile:\nkernels/tiny/cuda.cu(1): error: " in str(caught.value)
    assert "kernels/tiny/cpp.cpp does not compile:\nkernels/tiny/cpp.cpp" in str(caught.value)


def test_a_source_that_changes_while_it_is_compiled(project: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    def compile_and_edit(jobs: Sequence[LibraryBuild], folder: Path, root: Path) -> dict[LibraryBuild, str]:
        done = compile_all(jobs, folder, root)
        (root / "kernels/include/value.h").write_text("#define VALUE 3\n")
        return done

    with monkeypatch.context() as patch:
        patch.setattr(extension, "compile_all", compile_and_edit)
        with pytest.raises(UserError, match=r"kernels/include/value\.h changed while it was compiled"):
            cpp(project)
    assert value(cpp(project).path) == 3


def test_a_source_that_is_not_there(project: Place) -> None:
    with pytest.raises(
        UserError, match=r"kernel nosuch has no cpp\.cpp: kernels/nosuch/cpp\.cpp is not there"
    ):
        build(place(project.root, "nosuch"), [CPP])


def test_two_processes_build_once(project: Place) -> None:
    program = (
        "import sys; from pathlib import Path; from kernel_pipeline.toolchain.extension import build\n"
        "from tests.kernel_pipeline.toolchain.tiny import place\n"
        "print(build(place(Path(sys.argv[1])), ['cpp.cpp'])['cpp.cpp'].built)"
    )
    command = [sys.executable, "-c", program, str(project.root)]
    both = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) for _ in range(2)]
    assert sorted(process.communicate()[0].strip() for process in both) == ["False", "True"]


def test_load_gives_operators_and_writes_nothing_the_second_time() -> None:
    square = Place.for_kernel(loading.load("square"))
    load(square, CPP)
    x = torch.tensor([3.0, -2.0])[1:]
    assert torch.equal(torch.ops.square.cpp(x), x * x)
    folder = ROOT / "build/kernels/square"
    before = state(folder)
    load(square, CPP)
    program = (
        "from kernel_pipeline import loading; from kernel_pipeline.toolchain.extension import Place, load\n"
        "load(Place.for_kernel(loading.load('square')), 'cpp.cpp')"
    )
    subprocess.run([sys.executable, "-c", program], check=True, cwd=ROOT)
    assert state(folder) == before


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_cuda_needs_a_gpu_to_load() -> None:
    with pytest.raises(UserError, match=r"square/cuda\.cu needs a GPU"):
        load(Place.for_kernel(loading.load("square")), CUDA)


def test_a_source_is_compiled_for_the_instructions_that_its_providers_need() -> None:
    """The source with WGMMA is compiled for sm_90a instead of 9.0. Other capabilities and other sources
    are unchanged."""
    here = Place.for_kernel(loading.load("matmul"))
    assert here.architecture("wgmma.cu", "90") == "90a"
    assert here.architecture("wgmma.cu", "80") == "80"
    assert here.architecture("cuda.cu", "90") == "90"
