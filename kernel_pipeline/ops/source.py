"""A digest of the code of a provider's files, computed without the pipeline.

A table of tuned configurations stores the digest to identify its sources. The digest is coarser than a
ledger's key: it covers whole files, namely the provider's own files and all files that they import or include
from the kernel's folder and from shared modules and headers. It ignores comments, docstrings, formatting, the
texts of errors and reasons, the order of imports, and the modules that names are imported from.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import json
import re
from collections.abc import Iterator
from pathlib import Path

from ..loading import LIBRARY, ROOT, Loaded

DECLARATIONS = ("__init__.py", "contract.py")
"""Declarations do not affect outputs: imports of these files are not followed."""

SILENT = {"ctx", "kind", "type_comment", "type_ignores"}
"""Fields of a syntax tree that carry no further information."""

TOKEN = re.compile(
    r"""
      (?P<comment> //[^\n]* | /\*.*?\*/ )
    | (?P<raw>     R"(?P<mark>[^()\\\s]{0,16})\(.*?\)(?P=mark)" )
    | (?P<token>   "(?:\\.|[^"\\\n])*" | '(?:\\.|[^'\\\n])+' | \w+ | \S )
    | (?P<newline> \n )
    | (?P<space>   \s )
    """,
    re.VERBOSE | re.DOTALL,
)
"""The tokens of C++ and CUDA. A newline is a token only at the end of a preprocessor directive."""

INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*["<]([^">]+)[">]', re.MULTILINE)


def digest(loaded: Loaded, provider: str) -> str:
    """Return the digest of a provider's files, as sixteen hexadecimal digits. Raises KeyError for an unknown
    provider, OSError for a file that can't be read, and SyntaxError for invalid Python."""
    declared = loaded.kernel.provider(provider)
    files = tuple(filter(None, (declared.file, declared.extension)))
    return _of_files(loaded.folder, tuple(dict.fromkeys(files)), (declared.entry, str(declared.compiled)))


def of_file(file: Path) -> str:
    """Return the digest of one file's code."""
    return _hashed([_text(file)])


@functools.cache
def _of_files(folder: Path, names: tuple[str, ...], called: tuple[str, ...]) -> str:
    """Return the digest of files in a kernel's folder and of all files that they import or include;
    cached."""
    found: dict[Path, str] = {}
    pending = [(folder / name).resolve() for name in names]
    while pending:
        file = pending.pop()
        if file not in found:
            found[file] = _text(file)
            pending += _reached(file, folder.resolve())
    # Use paths relative to the folder or the package, so that the digest does not depend on their location.
    named = {_name(file, folder.resolve()): text for file, text in found.items()}
    return _hashed([sorted(named.items()), called])


def _hashed(value: object) -> str:
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()[:16]


def _name(file: Path, folder: Path) -> str:
    if file.is_relative_to(folder):
        return f"kernel:{file.relative_to(folder).as_posix()}"
    shared = ROOT.resolve() if file.is_relative_to(ROOT.resolve()) else LIBRARY.resolve()
    return f"shared:{file.relative_to(shared).as_posix()}"


def _text(file: Path) -> str:
    text = file.read_text(encoding="utf-8", errors="surrogateescape")
    if file.suffix == ".py":
        return json.dumps(_plain(ast.parse(text, str(file))))
    return " ".join(_tokens(text.replace("\\\n", "")))


def _plain(node: object) -> object:
    """Return a syntax tree as plain data.

    Leaves out docstrings, texts of errors and returned reasons, the modules that names are imported from, and
    the order of these imports. Empty fields are omitted, because newer versions of Python add some.
    """
    if isinstance(node, list):
        imports = [one for one in node if isinstance(one, ast.ImportFrom)]
        names = sorted([each.name, each.asname or ""] for one in imports for each in one.names)
        rest = [one for one in node if one not in imports and not _is_docstring(one)]
        return [*([["from", names]] if names else []), *map(_plain, rest)]
    if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
        return ["Raise", _plain(node.exc.func)]
    if isinstance(node, ast.Return) and isinstance(node.value, ast.JoinedStr):
        return ["Return", [_plain(one) for one in node.value.values if isinstance(one, ast.FormattedValue)]]
    if isinstance(node, ast.Constant):
        return [type(node.value).__name__, repr(node.value)]
    if isinstance(node, ast.AST):
        fields = {name: _plain(value) for name, value in ast.iter_fields(node) if name not in SILENT}
        kept = {name: value for name, value in fields.items() if value not in (None, [])}
        return [type(node).__name__, kept]
    return node


def _is_docstring(node: object) -> bool:
    """Whether a statement is a bare constant, which has no effect."""
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def _tokens(text: str) -> Iterator[str]:
    begins, directive = True, False
    for match in TOKEN.finditer(text + "\n"):
        if match.lastgroup == "newline":
            if directive:
                yield "\n"
            begins, directive = True, False
        elif match["token"] or match["raw"]:
            directive = directive or (begins and match[0] == "#")
            begins = False
            yield match[0]


def _reached(file: Path, folder: Path) -> Iterator[Path]:
    """Yield the files that a file imports or includes from the kernel's folder, the folder of all kernels,
    and this package."""
    if file.suffix == ".py":
        candidates = _imported(file)
    else:
        text = file.read_text(encoding="utf-8", errors="surrogateescape")
        places = (file.parent, folder, ROOT, ROOT / "include")
        candidates = (place / name for name in INCLUDE.findall(text) for place in places)
    for candidate in candidates:
        path = candidate.resolve()
        inside = any(path.is_relative_to(place.resolve()) for place in (folder, ROOT, LIBRARY))
        if inside and path.is_file() and path.name not in DECLARATIONS:
            yield path


def _imported(file: Path) -> Iterator[Path]:
    """Yield the possible paths of the modules that a Python file imports: for ``from a.b import c`` both
    ``a/b.py`` and ``a/b/c.py``."""
    packages = {"kernels": ROOT, __name__.partition(".")[0]: LIBRARY}
    names = []
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names += [(alias.name, 0) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            module = node.module or ""
            names += [(f"{module}.{alias.name}".lstrip("."), node.level) for alias in node.names]
            names.append((module, node.level))
    for name, level in names:
        parts = [part for part in name.split(".") if part]
        if level:
            base = file.parents[level - 1]
        elif parts and parts[0] in packages:
            base, parts = packages[parts[0]], parts[1:]
        else:
            continue
        if parts:
            yield base.joinpath(*parts).with_suffix(".py")
