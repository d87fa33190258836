"""Print a command's ``--help``: its purpose, examples, options, and the names that a kernel adds.

The docstring of the command's module gives purpose and examples. An option's meaning is the comment in the
command's file of conf/; the words that it takes come from its type.
"""

from __future__ import annotations

import ast
import re
import sys
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NoReturn, get_args, get_origin

from pydantic.fields import FieldInfo

from kernel_pipeline.errors import UserError, unknown
from kernel_pipeline.records.fields import visible_lines

from .. import CODE, TYPED, as_typed
from ..points import catalog
from ..points.catalog import SIZE, Options
from ..points.plan import describe
from . import options as schemas
from .errors import fail
from .words import CONF, EXPERIMENT, PIN, choices

BORROWED = {"ui": "publish"}
"""Commands that take another command's options."""

WITHOUT_KERNEL = ("judge", "new")
"""The commands whose ``kernel=`` names no existing kernel: a problem's file, and a kernel to create."""

WIDTH = 100

WITHOUT_NAME = {"", "null", "all"}
"""Values of ``kernel=`` that name no kernel."""

NEEDED = "???"
"""Marks an option without a default."""


@dataclass(frozen=True)
class Option:
    """An option of a file of conf/. ``before`` is the comment above it."""

    name: str
    default: str
    meaning: str
    before: str = ""


def show(name: str, words: Sequence[str]) -> NoReturn:
    """Print a command's help and exit. ``kernel=NAME`` among the words adds the kernel's names."""
    kernel = next((word.removeprefix("kernel=") for word in words if word.startswith("kernel=")), "")
    kernels = [one for one in kernel.strip("[]").split(",") if one not in WITHOUT_NAME]
    try:
        if name not in names():
            raise unknown("command", name, names())
        print(visible_lines(of_command(name, kernels)))
    except UserError as error:
        fail(str(error))
    sys.exit(0)


def names() -> list[str]:
    """Return every command, by the name of its file."""
    return sorted(path.stem for path in CODE.glob("[a-z]*.py"))


def commands() -> dict[str, str]:
    """Return every command with the first line of its docstring."""
    return {name: docstring(name).splitlines()[0] for name in names()}


def docstring(name: str) -> str:
    """Return a command's docstring without importing the command."""
    text = ast.get_docstring(ast.parse((CODE / f"{name}.py").read_text())) or ""
    text = text.replace("python -m pipeline.", TYPED)
    text = re.sub(r"^(Stage|Command) ``\w+``: ", "", text).replace("``", "`")
    return text[:1].upper() + text[1:]


def examples(name: str) -> list[str]:
    """Return the command lines that a command's docstring shows."""
    return re.findall(rf"^    ({re.escape(as_typed(name))}\b.*)$", docstring(name), re.MULTILINE)


def of_command(name: str, kernels: Sequence[str] = ()) -> str:
    """Return the help of a command. A command that takes a kernel adds the dimensions,
    parameters and workloads of the named kernels. Raises UserError for an unknown kernel."""
    first, _, rest = docstring(name).partition("\n\n")
    own = f"    {as_typed(name)}"
    prose = [part for part in rest.split("\n\n") if part and not part.startswith(own)]
    parts = [first, *prose, "Examples:", "\n".join(f"  {line}" for line in examples(name))]
    conf = CONF / f"{BORROWED.get(name, name)}.yaml"
    if not conf.exists():
        return "\n\n".join(parts)
    schema = schema_of(name)
    parts += ["Options, each with its default:", "\n".join(_lines(conf, schema))]
    if "kernel" not in schema.model_fields or name in WITHOUT_KERNEL:
        return "\n\n".join(parts)
    if not kernels:
        parts.append(
            f"`{as_typed(name, '--help', 'kernel=NAME')}` lists a kernel's dimensions and parameters."
        )
    elif PIN not in schema.model_fields:
        parts.append(f"`{as_typed(name)}` takes none of the dimensions and parameters below as options.")
    parts += map(of_kernel, kernels)
    return "\n\n".join(parts)


def schema_of(name: str) -> type[Options]:
    """Return the schema of a command's options."""
    words = BORROWED.get(name, name).split("_")
    found: type[Options] = getattr(schemas, f"{''.join(map(str.title, words))}Config")
    return found


def of_kernel(where: str) -> str:
    """Describe a kernel's dimensions, its providers' parameters with their values, its workloads and
    presets."""
    entry = catalog.find(where)
    kernel = entry.loaded.kernel
    lines = [f"{entry.name}: {entry.loaded.summary}", "", "Dimensions of a problem:"]
    lines += [f"  {SIZE}= stands for {' and '.join(kernel.size)}"]
    lines += [f"  {name}= {describe(variable)}" for name, variable in kernel.dimensions().items()]
    lines += ["", "Providers and their parameters:"]
    for provider in kernel.providers:
        brought = f", by {provider.package}" if provider.package else ""
        lines.append(f"  {provider.name} ({provider.language}, {' and '.join(provider.devices)}{brought})")
        lines += [f"    {name}= {describe(variable)}" for name, variable in provider.variables().items()]
    lines += ["", f"Workloads: {', '.join(entry.config.workloads)}"]
    lines += [f"Presets: {', '.join(entry.config.presets)}"]
    return "\n".join(lines)


def _lines(conf: Path, schema: type[Options]) -> Iterator[str]:
    fields = schema.model_fields
    for option in of_file(conf):
        if option.before:
            yield _wrapped(option.before, 2)
        if option.name != PIN:
            yield from _shown(option, fields[option.name])
    for group in groups(conf):
        if group.name == EXPERIMENT:
            yield from _choices(group)
            continue
        model = fields[group.name].annotation
        assert isinstance(model, type) and issubclass(model, Options), "a group has options of its own"
        if len(choices(group.name)) > 1:
            yield from _choices(group)
        if group.name != "preset":
            for option in of_file(CONF / group.name / f"{group.default}.yaml"):
                if option.name != "name":
                    named = Option(f"{group.name}.{option.name}", option.default, option.meaning)
                    yield from _shown(named, model.model_fields[option.name])


def _shown(option: Option, field: FieldInfo) -> Iterator[str]:
    words = values(field)
    # The list of words is left out if the meaning explains each of them.
    is_explained = all(re.search(rf"\b{word}\b", option.meaning) for word in words)
    parts = [option.meaning] if is_explained else [", ".join(words), option.meaning]
    if option.default == NEEDED:
        yield f"  {option.name}="
        parts.insert(0, "needed")
    else:
        yield f"  {option.name}={re.sub(r'^[$].*', '(as the preset says)', option.default)}"
    yield _wrapped(": ".join(parts), 6)


def _choices(group: Option) -> Iterator[str]:
    """Yield a group with the first line of each of its files."""
    yield f"  {group.name}={group.default}"
    yield _wrapped(group.meaning, 6)
    for name in choices(group.name):
        text = (CONF / group.name / f"{name}.yaml").read_text().splitlines()
        said = next(line.removeprefix("# ") for line in text if not line.startswith("# @package"))
        yield _wrapped(f"{name:<18} {said}", 6, 25)


def _wrapped(text: str, first: int, others: int | None = None) -> str:
    rest = first if others is None else others
    return textwrap.fill(
        text, WIDTH, initial_indent=" " * first, subsequent_indent=" " * rest, break_on_hyphens=False
    )


def values(field: FieldInfo) -> list[str]:
    """Return the words that an option's type allows."""
    if field.annotation is bool:
        return ["true", "false"]
    return list(dict.fromkeys(_words(field.annotation)))


def _words(annotation: Any) -> Iterator[str]:
    if get_origin(annotation) is Literal:
        yield from map(str, get_args(annotation))
    else:
        for argument in get_args(annotation):
            yield from _words(argument)


def groups(conf: Path) -> list[Option]:
    """Return the groups of files that a command composes, each with its default file."""
    found = re.findall(r"^  - (\w+): (\w+)(?: # (.+))?$", conf.read_text(), re.MULTILINE)
    return [Option(name, default, meaning) for name, default, meaning in found if name != "hydra"]


def of_file(conf: Path) -> list[Option]:
    """Return the options of a file of conf/, each with the comments above it and after it on its line."""
    _, groups_above, text = conf.read_text().rpartition("\n  - ")
    found, above = [], []
    for line in text.splitlines()[bool(groups_above) :]:
        if line.startswith("# "):
            above.append(line.removeprefix("# "))
        elif match := re.match(r"(\w+):(?: (.*?))?(?: # (.*))?$", line):
            found.append(Option(match[1], match[2] or "", match[3] or "", " ".join(above)))
            above = []
        elif not line:
            above = []
    return found
