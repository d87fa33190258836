"""Python code to paste that calls a configuration, through ``kernel_pipeline.ops`` or the provider's entry.

A kernel's ``op.py`` is parsed and not imported, since it imports torch.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kernel_pipeline.declared import Value
from kernel_pipeline.ops import names as functions
from kernel_pipeline.problems import make, values_of
from kernel_pipeline.records.point import Point

from ..points.catalog import Entry

OWN = "  # or tensors of your own"


@dataclass(frozen=True)
class Signature:
    """The signature of a function in ``kernel_pipeline.ops``.

    ``tensors`` are the required arguments, ``takes_more`` says whether there are optional tensors, and
    ``options`` are the other optional arguments with their defaults.
    """

    tensors: tuple[str, ...]
    takes_more: bool
    options: Mapping[str, Any]


def has_function(entry: Entry) -> bool:
    """Return whether ``kernel_pipeline.ops`` has a function for the kernel."""
    return not entry.loaded.is_outside and entry.name in functions()


LOAD = "from kernel_pipeline.loading import load"


def by_function(entry: Entry, problem: Any, device: str) -> str:
    """Return the call through ``kernel_pipeline.ops``, which chooses the configuration itself."""
    signature = _signature(entry)
    values = values_of(problem)
    options = {
        name: values[name]
        for name, default in signature.options.items()
        if name in values and values[name] != default
    }
    names = [*signature.tensors, *(["*others"] if signature.takes_more else [])]
    taken = f"({names[0]},)" if len(names) == 1 else ", ".join(names)
    return "\n".join(
        [
            *("import torch", "", LOAD, f"from kernel_pipeline.ops import {entry.name}", ""),
            *_made(entry, entry.loaded.where, problem),
            f'{taken} = loaded.inputs(problem, torch.device("{device}"), seed=0){OWN}',
            f"y = {entry.name}({', '.join([*names, *_named(options)])})",
        ]
    )


def by_entry(entry: Entry, point: Point, device: str) -> str:
    """Return the call of the provider's own entry in the configuration of ``point``, which gets tensors in
    the way that the kernel's entries take them."""
    kernel = entry.loaded.kernel
    provider = kernel.provider(point.provider)
    problem = make(kernel.problem, point.problem)
    source = provider.extension
    imports = ["import torch", "", LOAD, *(["from kernel_pipeline.ops import native"] if source else [])]
    prepared = []
    if provider.prepare is not None:
        imports.insert(2, "from kernel_pipeline.execution.weights import Weights")
        prepared = [
            f'weights = Weights(loaded, loaded.kernel.provider("{point.provider}"), problem)',
            "inputs = weights.taken(inputs)",
        ]
    build = [f'native.load(loaded, "{source}")  # compiled if necessary'] if source else []
    parameters = ", ".join(f'"{name}": {_literal(value)}' for name, value in point.parameters.items())
    return "\n".join(
        [
            *(*imports, ""),
            *_made(entry, entry.loaded.address(point.provider), problem),
            f'inputs = loaded.inputs(problem, torch.device("{device}"), seed=0){OWN}',
            *prepared,
            *build,
            f'provider = loaded.kernel.provider("{point.provider}")',
            f"call = loaded.call(provider, problem, {{{parameters}}})",
            "y = call(*inputs)",
        ]
    )


def _made(entry: Entry, address: str, problem: Any) -> list[str]:
    """Return the lines that load the kernel and make the problem."""
    return [
        f"loaded = load({_literal(address)})",
        f"problem = loaded.kernel.problem({', '.join(_named(values_of(problem)))})",
    ]


def _named(values: Mapping[str, Value]) -> list[str]:
    return [f"{name}={_literal(value)}" for name, value in values.items()]


def _literal(value: Value) -> str:
    return json.dumps(value) if isinstance(value, str) else repr(value)


def _signature(entry: Entry) -> Signature:
    """Return the signature of the function in ``op = Op(definition=...)`` of the kernel's ``op.py``."""
    tree = ast.parse((entry.loaded.folder / "op.py").read_text())
    defined = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}
    declared = next(
        node.value
        for node in tree.body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "op"
    )
    assert isinstance(declared, ast.Call), "op is an Op"
    name = next(one.value for one in declared.keywords if one.arg == "definition")
    arguments = defined[ast.unparse(name)].args
    required = len(arguments.args) - len(arguments.defaults)
    optional = dict(zip(arguments.args[required:], arguments.defaults, strict=True))
    return Signature(
        tensors=tuple(one.arg for one in arguments.args[:required]),
        takes_more=any(map(_is_tensor, optional)),
        options={
            one.arg: ast.literal_eval(default) for one, default in optional.items() if not _is_tensor(one)
        },
    )


def _is_tensor(argument: ast.arg) -> bool:
    return argument.annotation is not None and "Tensor" in ast.unparse(argument.annotation)
