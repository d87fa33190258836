"""Files that Python source may open, execute or compile, beside the modules that it imports.

Two rules, sound rather than clever. A file counts whose name a string of the code has. Where the code uses
anything by which files are opened or modules found, every file of the folder does, for names can be computed.
"""

from __future__ import annotations

import hashlib
import sys
import sysconfig
from collections.abc import Iterable, Mapping
from functools import cache
from importlib.machinery import PathFinder
from pathlib import Path

_OPENING = {
    *(
        "open",
        "io",
        "mmap",
        "memmap",
        "fromfile",
        "loadtxt",
        "read_text",
        "read_bytes",
        "Path",
        "glob",
        "listdir",
    ),
    *("exec", "eval", "runpy", "import_module", "__import__", "spec_from_file_location", "SourceFileLoader"),
    *("__file__", "__path__", "__spec__", "__loader__", "inspect", "pkgutil", "resources", "getcwd"),
    *("ctypes", "CDLL", "subprocess", "cpp_extension", "load_library", "load_file", "RawModule", "hsaco"),
}
"""Names by which code opens files, or finds where it lies itself."""

_READ_BY_NOBODY = {".md", ".rst", ".pyc", ".yaml", ".yml"}
"""Documentation, and what declares workloads: it counts where the code has its name."""


def files(folder: Path, modules: Mapping[Path, frozenset[str]]) -> dict[str, str]:
    """The digests of the files below a folder, by path, that modules may open, each with what is mentioned of
    it; the modules themselves count by what is reached in them."""
    mentioned = [words for module, words in modules.items() if module.is_relative_to(folder)]
    opens_any = any(words & _OPENING for words in mentioned)
    strings = {word for words in mentioned for word in words if "." in word}
    if not opens_any and not strings:
        return {}
    return {
        path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()[:16]
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path not in modules and not _is_hidden(path.relative_to(folder))
        if (opens_any and path.suffix not in _READ_BY_NOBODY) or any(path.name in text for text in strings)
    }


def _is_hidden(path: Path) -> bool:
    return any(part.startswith(".") or part == "__pycache__" for part in path.parts)


def elsewhere(names: Iterable[str], folder: Path) -> dict[str, Path]:
    """Where the packages and modules of these names lie, without suffix, that are neither of Python's library
    nor installed: on ``sys.path``, or in a folder of the kernel's."""
    found: dict[str, Path] = {}
    for name in sorted({*names} - sys.stdlib_module_names):
        place = _found(name, tuple(sys.path))
        if place is None:
            inside = (path for path in sorted(folder.glob("**/")) if not _is_hidden(path.relative_to(folder)))
            place = _found(name, tuple(map(str, inside)))
        # A package may be installed as a link to where it lies.
        places = () if place is None else (place, place.resolve())
        if place is not None and not any(one.is_relative_to(root) for one in places for root in installed()):
            found[name] = place.resolve()
    return found


@cache
def _found(name: str, paths: tuple[str, ...]) -> Path | None:
    spec = PathFinder.find_spec(name, list(paths))
    places = (
        [] if spec is None else [*([spec.origin] if spec.origin else spec.submodule_search_locations or ())]
    )
    if not places:
        return None
    place = Path(places[0]).absolute()
    return place.parent if place.name == "__init__.py" else place.with_suffix("")


@cache
def installed() -> tuple[Path, ...]:
    """Where installed packages and Python's own library lie, on ``PYTHONPATH`` too."""
    paths = sysconfig.get_paths()
    own = [Path(paths[name]) for name in ("stdlib", "platstdlib", "purelib", "platlib")]
    others = [Path(path) for path in sys.path if any(Path(path).glob("*.dist-info"))]
    return tuple(dict.fromkeys(one for path in (*own, *others) for one in (path.absolute(), path.resolve())))
