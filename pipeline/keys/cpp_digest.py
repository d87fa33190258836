"""Digest the tokens of a C++ or CUDA source and of the headers that it includes.

Comments, white space and line breaks are left out, except where the preprocessor reads them: a directive ends
with its line, and ``#define F (x)`` is not ``#define F(x)``. Nothing is evaluated: both branches of an
``#if`` are digested, and an include named by a macro is not followed. Changes of white space within an
argument that a macro turns into a string are missed.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path

_TOKEN = re.compile(
    r"""
      (?P<comment> // (?: \\[ \t]*\n | [^\n] )* | /\* .*? \*/ )
    | (?P<raw>     (?:u8|[uUL])? R"(?P<mark>[^()\\\s"]{0,16})\( .*? \)(?P=mark)" \w* )
    | (?P<quoted>  (?:u8|[uUL])? (?: "(?: \\. | [^"\\\n] )*" | '(?: \\. | [^'\\\n] )+' ) \w* )
    | (?P<word>    [^\W\d]\w* | \.?\d (?: [eEpP][+-] | '?[\w.] )* )
    | (?P<splice>  \\[ \t]*\n )
    | (?P<newline> \n )
    | (?P<space>   \s )
    | (?P<sign>    <<<|>>>|<=>|<<=|>>=|->\*|\.\.\.
                 | ::|->|\.\*|\+\+|--|<<|>>|<=|>=|==|!=|&&|\|\||[-+*/%&|^]=|\#\# | . )
    """,
    re.VERBOSE | re.DOTALL,
)
"""A number is a word and includes its digit separators; a literal includes its prefix and suffix. Anything
else, such as a quote that nothing closes, is a sign."""

_SPLICE = re.compile(r"\\[ \t]*\n")


def closure(source: Path, roots: Sequence[Path]) -> dict[str, str]:
    """Return digests of tokens by path relative to the root, for a source and all files that it includes,
    directly or indirectly.

    A quoted include is looked for beside the file that has it, then in the roots; an include in angle
    brackets only in the roots, as by a compiler with the roots as include path. An include that is found
    under no root is a system header, and adds its name.

    Raises LookupError with a sentence for a source that lies under no root, and OSError for a file that can't
    be read.
    """
    folders = [root.resolve() for root in roots]
    if _root_of(source.resolve(), folders) is None:
        raise LookupError(f"{source} is outside of the folders that a key covers.")
    found: dict[Path, tuple[str, ...]] = {}
    pending = [source.resolve()]
    while pending:
        file = pending.pop()
        if file not in found:
            found[file] = _tokens(file.read_text(encoding="utf-8", errors="surrogateescape"))
            included = _included(found[file], file.parent, folders)
            pending += filter(None, (_resolve(name, places, folders) for name, places in included))
    return _named({file: _digest(found[file]) for file in sorted(found)}, folders)


@cache
def _tokens(text: str) -> tuple[str, ...]:
    """Return the tokens as a tuple, cached because many sources share a header."""
    return tuple(tokens(text))


def tokens(text: str) -> list[str]:
    """Return the tokens of some source. A line break ends each directive, and a space follows the name of a
    macro whose value begins with a parenthesis."""
    read: list[str] = []
    line: int | None = None  # index in ``read`` of this line's first token
    end = 0
    for match in _TOKEN.finditer(_spliced(text) + "\n"):
        kind, token = match.lastgroup, match[0]
        if kind == "newline":
            if line is not None and read[line] == "#":
                read.append("\n")
            line = None
        elif kind not in ("comment", "space"):
            line = len(read) if line is None else line
            if token == "(" and match.start() > end and _names_macro(read[line:]):
                read.append(" ")
            read.append(token)
            end = match.end()
    return read


def _spliced(text: str) -> str:
    """Join the lines that a backslash continues, except in raw strings."""
    matches = _TOKEN.finditer(text.replace("\r\n", "\n"))
    return "".join(match[0] if match.lastgroup == "raw" else _SPLICE.sub("", match[0]) for match in matches)


def _names_macro(line: list[str]) -> bool:
    """Whether a line's tokens so far are ``#define NAME``."""
    return line[:2] == ["#", "define"] and len(line) == 3


def _included(
    read: Sequence[str], beside: Path, roots: Sequence[Path]
) -> Iterator[tuple[str, Sequence[Path]]]:
    """Yield the names that a file's tokens include, each with the folders to look for it."""
    for place, (sign, word, name) in enumerate(zip(read, read[1:], read[2:], strict=False)):
        if sign == "#" and word in ("include", "include_next"):
            if name.startswith('"'):
                yield name[1:-1], (beside, *roots)
            elif name == "<":
                rest = read[place + 3 :]
                yield "".join(rest[: rest.index(">")] if ">" in rest else ()), roots


def _resolve(name: str, folders: Sequence[Path], roots: Sequence[Path]) -> Path | None:
    """Return the file under a root that an include names, None if there is none."""
    for folder in folders:
        candidate = (folder / name).resolve()
        if candidate.is_file():
            return candidate if _root_of(candidate, roots) else None
    return None


def _root_of(file: Path, roots: Sequence[Path]) -> Path | None:
    return next((root for root in roots if file.is_relative_to(root)), None)


def _named(digests: dict[Path, str], roots: Sequence[Path]) -> dict[str, str]:
    """Return digests by the files' paths relative to their roots. A path that an earlier root also has begins
    with the root's name."""
    named: dict[str, str] = {}
    for root in roots:
        for file, digest in digests.items():
            if _root_of(file, roots) == root:
                name = file.relative_to(root).as_posix()
                named[f"{root.name}/{name}" if name in named else name] = digest
    return dict(sorted(named.items()))


@cache
def _digest(read: tuple[str, ...]) -> str:
    return hashlib.sha256(json.dumps(read).encode()).hexdigest()[:16]
