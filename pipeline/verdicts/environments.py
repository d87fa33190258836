"""Environments as sides of a comparison: folders of packages that come before the installed packages.

pip installs ``env:triton==3.6.0`` into a folder below ``local/environments/``, with the dependencies that the
installed packages do not satisfy. ``env:FOLDER`` is a virtual environment, a folder that
``pip install --target`` filled, or a CUDA toolkit. If the folder has an nvcc, it builds the side's libraries.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cache
from importlib import metadata, util
from pathlib import Path

from packaging.version import Version

from kernel_pipeline import files
from kernel_pipeline.errors import UserError
from kernel_pipeline.machine import compilers
from kernel_pipeline.machine.compilers import NoCompilerError
from kernel_pipeline.machine.fingerprint import find_nvcc
from kernel_pipeline.machine.reaper import under_reaper
from kernel_pipeline.records.base import digest
from kernel_pipeline.toolchain.extension import BUILD

from .. import IS_INSTALLED

PREFIX = "env:"
"""The beginning of a side's text that names an environment."""

FOLDER = files.LOCAL / "environments"

PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"

IN_KEYS = ("torch", "triton", "ptxas", "nvcc")
"""The packages and compilers that are in the keys of those providers that depend on them. Any other package
may change the times of any provider."""

MOST_SHOWN = 8
"""The maximum number of packages that a line about a side names."""

UNREACHABLE = re.compile(r"after connection broken|Could not fetch URL")

Tell = Callable[[str], None]
"""Gets a line about the progress."""


def packages(text: str, tell: Tell) -> Path:
    """Return the folder of the packages that a side's text names. Installs them if they are not there.

    Raises UserError if the text names no environment for this Python, or if pip can't install it.
    """
    named = text.removeprefix(PREFIX)
    folder = Path(named).expanduser()
    if folder.is_dir():
        return _with_whole_toolkit(text, _of_folder(text, folder.resolve()))
    if "/" in named:
        raise UserError(f"{text}: there is no folder {named}.")
    # A comma also separates the conditions on one package's version, and its extras.
    requirements = re.split(r",\s*(?=[A-Za-z])(?![^\[]*\])", named)
    pins = _resolved(text, requirements, tell)
    short = re.sub(r"[^A-Za-z0-9_.+-]+", "-", named)[:60]
    found = FOLDER / f"{short}-{digest([pins, PYTHON])}"
    if not found.is_dir():
        _install(text, pins, found, tell)
    return _with_whole_toolkit(text, found)


def variables(folder: Path) -> tuple[tuple[str, str], ...]:
    """Return the environment variables of processes in which a folder's packages come first."""
    toolkit = _toolkit(folder)
    found = {} if toolkit is None else {"CUDA_HOME": str(toolkit)}
    if toolkit != folder:
        found["PYTHONPATH"] = os.pathsep.join(filter(None, [str(folder), os.environ.get("PYTHONPATH")]))
    if IS_INSTALLED:  # else the folder of this package, which is the working folder, would come first
        found["PYTHONSAFEPATH"] = "1"
    if toolkit is not None or (folder / "torch").is_dir():  # libraries are built with torch's headers
        found[BUILD] = str(files.WORK / "build" / "environments" / digest(str(folder)))
    return tuple(found.items())


@cache
def installed() -> dict[str, str]:
    """Return the version of each package that this process can import, of Triton's ptxas, and of nvcc."""
    found: dict[str, str] = {}
    for one in metadata.distributions():  # the first of a name is the one that is imported
        about = one.metadata  # it is read from the disk at each access
        if name := about["Name"]:  # the folder of a broken installation has none
            found.setdefault(re.sub(r"[-_.]+", "-", name).lower(), about["Version"])
    spec = util.find_spec("triton")
    for folder in (spec.submodule_search_locations or []) if spec else []:
        ptxas = Path(folder, "backends", "nvidia", "bin", "ptxas")
        if ptxas.is_file():
            said = subprocess.run([ptxas, "--version"], capture_output=True, text=True, check=False).stdout
            found["ptxas"] = (re.findall(r"\bV([\d.]+)", said) or ["unknown"])[0]
    with suppress(UserError):
        found["nvcc"] = find_nvcc().version
    return found


def differing(a: dict[str, str], b: dict[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    """Return the versions of both sides' packages that differ, and of those in ``IN_KEYS``."""
    names = [*IN_KEYS, *sorted(name for name in {**a, **b} if a.get(name) != b.get(name))]
    return tuple({name: one[name] for name in names if name in one} for one in (a, b))  # type: ignore[return-value]


def shown(packages: dict[str, str]) -> str:
    """Return a line with packages and their versions."""
    words = [f"{name} {version}" for name, version in packages.items()]
    more = len(words) - MOST_SHOWN
    return ", ".join(words[:MOST_SHOWN]) + (f" and {more} more" if more > 0 else "")


def versions(good: str, bad: str, tell: Tell) -> list[str]:
    """Return texts of environments with the versions of a package that pip's indexes offer after ``good``, up
    to ``bad``: the oldest first.

    Raises UserError unless both name one version of the same package, ``good`` the older.
    """
    one, other = (re.fullmatch(rf"{PREFIX}([\w.-]+)==([\w.+!]+)", each) for each in (good, bad))
    if one is None or other is None or one[1] != other[1]:
        raise UserError(
            f"bisect=true searches between two versions of a package: write a={PREFIX}PACKAGE==GOOD "
            f"b={PREFIX}PACKAGE==BAD."
        )
    first, last = Version(one[2]), Version(other[2])
    if first >= last:
        raise UserError(f"{one[2]} is not older than {other[2]}: write the older version as a.")
    lines = _pip(bad, ["index", "versions", one[1]], [one[1]], tell)
    listed = [line.partition(":")[2] for line in lines if line.startswith("Available versions:")]
    # Builds of one version, as 2.13.0 and 2.13.0+cpu, are one candidate: pip takes the best one.
    offered = {Version(Version(each.strip()).public) for each in ",".join(listed).split(",") if each.strip()}
    between = sorted({each for each in offered if first < each < last})
    return [*(f"{PREFIX}{one[1]}=={each}" for each in between), bad]


def _toolkit(folder: Path) -> Path | None:
    """Return the folder of the CUDA toolkit among a folder's packages, or the folder if it is a toolkit."""
    found = [*sorted(folder.glob("nvidia/cu[0-9]*/bin/nvcc"), reverse=True), folder / "bin" / "nvcc"]
    return next((path.parent.parent for path in found if path.is_file()), None)


def _with_whole_toolkit(text: str, folder: Path) -> Path:
    """Return a folder of packages. Raises UserError if it has an nvcc that can't build libraries."""
    toolkit = _toolkit(folder)
    if toolkit is not None:
        with suppress(NoCompilerError):
            if compilers.find_nvcc({"CUDA_HOME": str(toolkit)}, toolkit).path.is_relative_to(toolkit):
                return folder
        raise UserError(
            f"{text}: the nvcc in {toolkit} has no libcudart_static.a, or is older than CUDA "
            f"{compilers.OLDEST_CUDA}: name a whole toolkit, as "
            f"{PREFIX}cuda-toolkit[nvcc,cudart,crt,cccl]==13.1.*."
        )
    return folder


def _of_folder(text: str, folder: Path) -> Path:
    """Return the folder of an environment's packages. Raises UserError if it can't be a side."""
    if (folder / "bin" / "nvcc").is_file() and not (folder / "pyvenv.cfg").is_file():
        return folder
    sites = sorted(folder.glob("lib/python3*/site-packages"))
    found = folder / "lib" / f"python{PYTHON}" / "site-packages" if sites else folder
    if sites and found not in sites:
        raise UserError(
            f"{text}: its Python is {sites[-1].parent.name.removeprefix('python')}, and this command's is "
            f"{PYTHON}: make the environment with Python {PYTHON}, or run this command with the other."
        )
    if not any(found.glob("*.dist-info")):
        raise UserError(
            f"{text}: {found} holds no installed package: name a virtual environment, a folder that "
            "pip install --target filled, or a CUDA toolkit."
        )
    config = files.content(folder / "pyvenv.cfg").decode()
    if sites and not (found / "torch").is_dir() and "include-system-site-packages = true" not in config:
        raise UserError(
            f"{text}: it has no torch: install torch there, or name only the packages that differ, as "
            f"{PREFIX}triton==3.6.0."
        )
    if IS_INSTALLED and (found / "kernel_pipeline").is_dir():
        raise UserError(
            f"{text}: it has a kernel_pipeline of its own, which would measure this side: uninstall it there."
        )
    return found


def _resolved(text: str, requirements: Sequence[str], tell: Tell) -> list[str]:
    """Return the pins of the packages that pip would install: those that are not installed already."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder, "report.json")
        words = ["install", "--dry-run", "--report", str(report), *requirements]
        _pip(text, words, requirements, tell, folder)
        found = json.loads(report.read_bytes())["install"]
    return sorted(f"{one['metadata']['name']}=={one['metadata']['version']}" for one in found)


def _install(text: str, pins: Sequence[str], folder: Path, tell: Tell) -> None:
    """Install packages into a folder, which exists only when all of them are installed."""
    with files.locked(folder):
        if folder.is_dir():
            return
        made = folder.with_name(f".{folder.name}")
        shutil.rmtree(made, ignore_errors=True)  # of a killed process
        try:
            (made / "packages").mkdir(parents=True)
            if pins:
                words = ["install", "--no-deps", "--target", str(made / "packages"), *pins]
                _pip(text, words, pins, tell, str(made))
            (made / "packages").rename(folder)
        except OSError as error:
            raise UserError(f"{text}: can't write {error.filename or made}: {error.strerror}.") from error
        finally:
            shutil.rmtree(made, ignore_errors=True)


def _pip(
    text: str, words: Sequence[str], wanted: Sequence[str], tell: Tell, temporary: str | None = None
) -> list[str]:
    """Run pip, and return its output's lines. Raises UserError with the reason if it fails."""
    # pip must say what it does, also where its configuration asks for less.
    talkative = {"PIP_QUIET": "0", "PIP_VERBOSE": "0"}
    command = [sys.executable, "-m", "pip", *words, "--no-input", "--disable-pip-version-check"]
    lines: list[str] = []
    with subprocess.Popen(
        under_reaper(command),
        env=os.environ | talkative | ({"TMPDIR": temporary} if temporary else {}),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    ) as pip:
        assert pip.stdout is not None, "it is a pipe"
        try:
            for line in pip.stdout:
                lines.append(line.strip())
                if line.startswith(("Collecting ", "Processing ", "Downloading ", "Installing ")):
                    tell(f"{text}: {line.strip()[:80]} …")
        except BaseException:
            pip.terminate()
            raise
    if pip.returncode:
        raise UserError(f"{text}: {_reason(lines, ', '.join(wanted))}")
    return lines


def _reason(lines: Sequence[str], wanted: str) -> str:
    """Return a sentence on why pip failed, by its output."""
    said = "\n".join(lines)
    if "No module named pip" in said:
        return "pip is missing: run python -m ensurepip, or name a folder of packages."
    if UNREACHABLE.search(said):
        return f"pip reaches no index that has {wanted}: name a folder of packages where there is no network."
    absent = re.search(r"No matching distribution found for (\S+)", said)
    if absent:
        offered = re.search(r"from versions: ([^)]+)\)", said)
        known = offered[1].split(", ")[-5:] if offered and offered[1] != "none" else []
        last = f"the last versions are {', '.join(known)}" if known else "they have no version of it"
        return f"pip's indexes have no {absent[1]} for Python {PYTHON}: {last}."
    errors = [line.removeprefix("ERROR: ") for line in lines if line.startswith("ERROR: ")]
    return f"pip can't install {wanted}: {(errors or list(lines)[-1:] or ['it says nothing'])[0]}"
