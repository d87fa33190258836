"""Run cuobjdump and nvdisasm on a cubin or a library.

Both programs come with a CUDA toolkit, as packages from PyPI, and inside Triton's package. The newest pair is
used, because an older disassembler can't read the code of a newer assembler.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from importlib import util
from pathlib import Path

from kernel_pipeline.errors import UserError
from kernel_pipeline.machine.fingerprint import SYSTEM_CUDA, find_nvcc
from kernel_pipeline.records.base import Record

from . import sass
from .occupancy import RESERVED_SHARED
from .sources import REPOSITORY, Sources

NO_TOOLS = (
    "neither a CUDA toolkit, PyPI nor Triton brought cuobjdump and nvdisasm: "
    "pip install nvidia-cuda-cuobjdump nvidia-cuda-nvdisasm."
)


class Resources(Record):
    """A function's registers per thread, static shared memory per block and stack per thread, in bytes."""

    registers: int
    shared: int
    stack: int


@dataclass(frozen=True)
class Analysis:
    """A function of a cubin: its resources and its instructions."""

    symbol: str
    resources: Resources
    instructions: tuple[sass.Instruction, ...]


@dataclass(frozen=True)
class Tools:
    """The folder that holds both programs, and their version."""

    folder: Path
    version: tuple[int, ...]

    def analyse(self, cubin: Path, arch: str, sources: Sources = REPOSITORY) -> tuple[list[Analysis], str]:
        """Return the functions of a cubin for the architecture ``arch``, and its SASS as text. Raises
        UserError if the file is not a cubin."""
        text = self._run("nvdisasm", "-c", "-gi", cubin)
        used = usage(self._run("cuobjdump", "-res-usage", cubin), arch)
        try:
            functions = sass.parse(text, sources)
        except ValueError as error:
            raise UserError(f"{cubin} {error}: it is not a cubin, or this nvdisasm can't read it.") from error
        return [Analysis(f.symbol, used[f.symbol], f.instructions) for f in functions], text

    def extract(self, library: Path, folder: Path) -> tuple[list[Path], list[Path]]:
        """Write a library's cubins and PTX into a folder. Returns the paths of both."""
        for option in ("-xelf", "-xptx"):
            self._run("cuobjdump", option, "all", library.absolute(), cwd=folder)
        return sorted(folder.glob("*.cubin")), sorted(folder.glob("*.ptx"))

    def _run(self, name: str, *arguments: str | Path, cwd: Path | None = None) -> str:
        done = subprocess.run(
            [self.folder / name, *arguments], capture_output=True, text=True, check=False, cwd=cwd
        )
        if done.returncode:
            said = (done.stderr or done.stdout).strip().splitlines()
            raise UserError(
                f"{name} can't read {arguments[-1]}: {said[-1] if said else 'it gives no message'}"
            )
        return done.stdout


@cache
def find_tools() -> Tools:
    """Find the newest pair of programs. Raises UserError with the command that installs them."""
    found = [tools for folder in dict.fromkeys(_folders()) if (tools := _tools_in(folder))]
    if not found:
        raise UserError(NO_TOOLS)
    return max(found, key=lambda tools: tools.version)


def _folders() -> Iterator[Path]:
    with suppress(UserError):
        yield find_nvcc().path.resolve().parent
    if on_path := shutil.which("cuobjdump"):
        yield Path(on_path).parent
    yield SYSTEM_CUDA / "bin"
    packages = util.find_spec("nvidia")
    for folder in (packages.submodule_search_locations or []) if packages else []:
        yield from sorted(Path(folder).glob("cu*/bin"))
    triton = util.find_spec("triton")
    if triton is not None and triton.origin is not None:
        yield Path(triton.origin).parent / "backends" / "nvidia" / "bin"


def _tools_in(folder: Path) -> Tools | None:
    versions = []
    for name in ("cuobjdump", "nvdisasm"):
        if not os.access(folder / name, os.X_OK):
            return None
        done = subprocess.run([folder / name, "--version"], capture_output=True, text=True, check=False)
        match = re.search(r"V(\d+(?:\.\d+)*)", done.stdout)
        if match is None:
            return None
        versions.append(tuple(int(part) for part in match[1].split(".")))
    return Tools(folder, min(versions))


def usage(text: str, arch: str) -> dict[str, Resources]:
    """Parse the output of ``cuobjdump -res-usage`` into the resources of each function."""
    # From compute capability 9.0 on, SHARED includes the bytes that the system reserves in every block.
    reserved = RESERVED_SHARED if int(arch.rstrip("af")) >= 90 else 0
    found = {}
    for match in re.finditer(r"Function (\S+):\s+REG:(\d+) STACK:(\d+) SHARED:(\d+)", text):
        symbol, registers, stack, shared = match[1], *map(int, match.groups()[1:])
        found[symbol] = Resources(registers=registers, shared=max(0, shared - reserved), stack=stack)
    return found


def analyse_bytes(cubin: bytes, arch: str, sources: Sources) -> tuple[list[Analysis], str]:
    """Run ``Tools.analyse`` on a cubin in memory."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "code.cubin")
        path.write_bytes(cubin)
        return find_tools().analyse(path, arch, sources)
