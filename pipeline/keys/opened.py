"""Find files that Python source may open, execute or compile, besides the modules that it imports.

Two conservative rules apply. A file belongs to the key if a string in the code has its name. If the code uses
anything that opens files or finds modules, every file of the folder belongs to the key, because names can be
computed.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterable, Mapping
from functools import cache
from importlib.machinery import PathFinder
from pathlib import Path

from kernel_pipeline.machine.fingerprint import package_folders

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
"""Names by which code opens files, or finds its own location."""

_READ_BY_NOBODY = {".md", ".rst", ".pyc", ".yaml", ".yml"}
"""Suffixes of documentation, bytecode and workload declarations. Such a file belongs to the key only if the
code has its name."""


def files(folder: Path, modules: Mapping[Path, frozenset[str]]) -> dict[str, str]:
    """Return the digests, by path, of the files below a folder that modules may open. ``modules`` has the
    names and strings that each module mentions. The modules themselves are left out: the closure has their
    reached definitions."""
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
    """Return the paths, without suffix, of the packages and modules of these names that are neither in
    Python's library nor installed. They are looked for on ``sys.path``, then below the kernel's folder."""
    found: dict[str, Path] = {}
    for name in sorted({*names} - sys.stdlib_module_names):
        place = _found(name, tuple(sys.path))
        if place is None:
            inside = (path for path in sorted(folder.glob("**/")) if not _is_hidden(path.relative_to(folder)))
            place = _found(name, tuple(map(str, inside)))
        # An installed package may be a link to its source.
        places = () if place is None else (place, place.resolve())
        if place is not None and not any(
            one.is_relative_to(root) for one in places for root in package_folders()
        ):
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
