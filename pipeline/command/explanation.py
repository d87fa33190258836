"""What a command's ``--help`` says: what it does, its options as conf/ explains them, and a kernel's own
names."""

from __future__ import annotations

import ast
import importlib.util
import re
from pathlib import Path

from pipeline.points import catalog
from pipeline.points.plan import describe
from pipeline.points.problems import SIZE


def of_command(name: str, conf: Path, kernel: str | None) -> str:
    """The help of ``python -m pipeline.NAME``; with a kernel also its dimensions, parameters and workloads.

    Raises UserError for a kernel that is not there.
    """
    parts = [_docstring(name), f"Options, with their defaults (conf/{conf.name}):", _indented(_options(conf))]
    takes_a_kernel = re.search("^kernel: (?!null)", conf.read_text(), re.MULTILINE)
    if takes_a_kernel and kernel is not None:
        parts.append(of_kernel(kernel))
    elif takes_a_kernel:
        parts.append(f"`python -m pipeline.{name} --help kernel=NAME` lists what a kernel takes.")
    return "\n\n".join(parts)


def of_kernel(where: str) -> str:
    """A kernel's dimensions, its providers' parameters with their values, its workloads and presets."""
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


def _docstring(name: str) -> str:
    spec = importlib.util.find_spec(f"pipeline.{name}")
    assert spec is not None and spec.origin is not None, "a command is a module of this package"
    return ast.get_docstring(ast.parse(Path(spec.origin).read_text())) or ""


def _options(conf: Path) -> str:
    """The options of a file of conf/, without the groups that Hydra composes."""
    lines = conf.read_text().splitlines()
    begin = next((i + 1 for i, line in enumerate(lines) if line.strip() == "- _self_"), 0)
    return "\n".join(lines[begin:]).strip()


def _indented(text: str) -> str:
    return "\n".join(f"  {line}" if line else "" for line in text.splitlines())
