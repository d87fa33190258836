"""Find this machine's C++ and CUDA compilers, and return the commands that build a library.

The pipeline and ``kernel_pipeline.ops`` use them. The module does not import torch.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import util
from pathlib import Path

OLDEST_CUDA = 12
SYSTEM_CUDA = Path("/usr/local/cuda")

NO_NVCC = (
    "no CUDA compiler was found: install a CUDA toolkit and set CUDA_HOME, "
    'or run: pip install "cuda-toolkit[nvcc,cudart,crt,cccl]==13.0.*".'
)
NO_CXX = "no C++ compiler was found: install g++ (apt-get install g++) or set CXX to the compiler."


# LibTorch's stable ABI as of torch 2.10; later versions of torch keep it.
STABLE_ABI = "-DTORCH_TARGET_VERSION=0x020a000000000000"
# -fopenmp-simd enables `#pragma omp simd` without OpenMP's threads; torch provides the threads. With
# -fno-trapping-math the compiler may compute both sides of a condition and discard lanes. Only inlined
# functions take vector arguments, so their ABI (-Wpsabi) does not matter.
CXX_FLAGS = (
    "-std=c++17",
    "-O3",
    "-fopenmp-simd",
    "-fno-trapping-math",
    "-fPIC",
    "-fvisibility=hidden",
    "-Wall",
    "-Wextra",
    "-Wno-psabi",
    STABLE_ABI,
)
# USE_CUDA declares the stream; -lineinfo lets profilers and disassembly point at the source.
NVCC_FLAGS = (
    "-std=c++17",
    "-O3",
    "-lineinfo",
    "-Xptxas=-v",
    "-Xcompiler=-fPIC,-fvisibility=hidden",
    "-DUSE_CUDA",
    STABLE_ABI,
)
# ptxas compiles the functions of a source in several threads. The generated code is the same (compared with
# nvcc 13.0 for layernorm, and for matmul except its first products), so the flag is not part of a key.
SPLIT, SPLIT_SINCE = "-Xptxas=--split-compile=0", 13


class NoCompilerError(Exception):
    """A missing compiler; the text is a sentence that says how to install it."""


@dataclass(frozen=True)
class Nvcc:
    """A CUDA compiler. ``libraries`` is the folder of its libcudart_static.a."""

    path: Path
    version: str
    libraries: Path

    def architectures(self) -> frozenset[str]:
        """Return the architectures that it supports, as compute capabilities without the dot: ``90``."""
        return frozenset(re.findall(r"sm_(\w+)", _output(self.path, "--list-gpu-code")))


@dataclass(frozen=True)
class Cxx:
    """A C++ compiler."""

    path: Path
    version: str


def find_nvcc(environment: Mapping[str, str] | None = None, system_cuda: Path = SYSTEM_CUDA) -> Nvcc:
    """Return the CUDA compiler to use: the first of CUDA 12 or newer in ``$CUDA_HOME``, ``$CUDA_PATH``,
    ``$PATH``, ``/usr/local/cuda`` and the packages from PyPI. Raises NoCompilerError if there is none.
    """
    environment = os.environ if environment is None else environment
    for path in _nvcc_candidates(environment, system_cuda):
        found = _nvcc_at(path)
        if found is not None:
            return found
    raise NoCompilerError(NO_NVCC)


def find_cxx(environment: Mapping[str, str] | None = None) -> Cxx:
    """Return the C++ compiler to use: ``$CXX``, or the first of c++, g++ and clang++. Raises NoCompilerError
    if there is none."""
    environment = os.environ if environment is None else environment
    wanted = environment.get("CXX")
    for name in [wanted] if wanted else ["c++", "g++", "clang++"]:
        path = shutil.which(name, path=environment.get("PATH"))
        if path is not None:
            return Cxx(Path(path), _output(Path(path), "--version").partition("\n")[0].strip())
    raise NoCompilerError(
        f"CXX names {wanted}, which does not exist. Set CXX to a C++ compiler." if wanted else NO_CXX
    )


def targets(architectures: Sequence[str]) -> tuple[str, ...]:
    """Return nvcc's flags to generate code and PTX for architectures (``90``, ``90a``)."""
    return tuple(f"-gencode=arch=compute_{name},code=[compute_{name},sm_{name}]" for name in architectures)


def commands(  # the inputs of a library
    source: Path,
    library: Path,
    include: Path,
    torch: Path,
    with_cuda: bool,
    cxx: Cxx,
    nvcc: Nvcc | None,
    flags: Sequence[str],
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return two commands: the first compiles a source and writes its dependencies to ``.d``, the second
    links the library.

    source:
        The path of a C++ source, or with ``nvcc`` of a CUDA source.
    library:
        The path of the ``.so``; ``.o`` and ``.d`` are beside it.
    include, torch:
        The folder of our headers, and the folder of the torch package.
    with_cuda:
        Whether torch was built with CUDA.
    """
    made = ["-isystem", str(torch / "include"), f"-I{include}"]
    made += ["-MMD", "-MF", str(library.with_suffix(".d")), "-c", str(source)]
    made += ["-o", str(library.with_suffix(".o"))]
    # -s strips local symbols, because nvcc puts its process id into their names.
    link = [str(cxx.path), "-shared", "-s", str(library.with_suffix(".o")), "-o", str(library)]
    link += [f"-L{torch / 'lib'}", "-ltorch_cpu"]
    if nvcc is None:
        return (str(cxx.path), *flags, *made), tuple(link)
    link += ["-ltorch_cuda"] if with_cuda else []
    # With the static runtime, loading needs no search path for libcudart.
    link += [f"-L{nvcc.libraries}", "-lcudart_static", "-ldl", "-lrt", "-lpthread"]
    split = [SPLIT] if int(nvcc.version.partition(".")[0]) >= SPLIT_SINCE else []
    return (str(nvcc.path), "-ccbin", str(cxx.path), *flags, *split, *made), tuple(link)


def demangle(names: Sequence[str], nvcc: Nvcc | None = None) -> dict[str, str]:
    """Return the demangled C++ names by mangled name; names are unchanged if no demangler is installed."""
    toolkit = nvcc.path.with_name("cu++filt") if nvcc else None
    tool = toolkit if toolkit and toolkit.is_file() else shutil.which("c++filt")
    if tool is None or not names:
        return {name: name for name in names}
    result = subprocess.run([tool], input="\n".join(names), capture_output=True, text=True, check=True)
    return dict(zip(names, result.stdout.splitlines(), strict=True))


def _nvcc_candidates(environment: Mapping[str, str], system_cuda: Path) -> Iterator[Path]:
    for variable in ("CUDA_HOME", "CUDA_PATH"):
        if environment.get(variable):
            yield Path(environment[variable], "bin", "nvcc")
    on_path = shutil.which("nvcc", path=environment.get("PATH", ""))
    if on_path is not None:
        yield Path(on_path)
    yield system_cuda / "bin" / "nvcc"
    yield from packaged("bin/nvcc")


def packaged(program: str) -> Iterator[Path]:
    """Yield the paths of a program in CUDA toolkits from PyPI, the newest toolkit first."""
    packages = util.find_spec("nvidia")
    for folder in (packages.submodule_search_locations or []) if packages else []:
        yield from sorted(Path(folder).glob(f"cu[0-9]*/{program}"), reverse=True)


def _nvcc_at(path: Path) -> Nvcc | None:
    if not os.access(path, os.X_OK):
        return None
    version = re.search(r"V(\d+)([.\d]+)", _output(path, "--version"))
    if version is None or int(version[1]) < OLDEST_CUDA:
        return None
    # Ask nvcc for its toolkit's folder, because nvcc on PATH may be a link or a script.
    top = re.search(r"^#\$ TOP=(.+)$", _output(path, "--dryrun", "-c", "nothing.cu"), re.MULTILINE)
    root = Path(top[1]).resolve() if top else path.resolve().parent.parent
    for libraries in (root / "lib64", root / "lib", *sorted(root.glob("targets/*/lib"))):
        if (libraries / "libcudart_static.a").is_file():
            return Nvcc(path, version[1] + version[2], libraries)
    return None


def _output(*command: str | Path) -> str:
    """Return the output of a compiler; empty if it can't start."""
    try:
        result = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError:
        return ""
    return result.stdout + result.stderr
