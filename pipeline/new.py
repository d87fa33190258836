"""Command ``new``: write the folder and YAML of a kernel that runs at once, as a start for its author.

    python -m pipeline.new kernel=my_kernel
    python -m pipeline.new kernel=path/to/my_kernel
    python -m pipeline.new kernel=my_add from=add.py:add_kernel reference="x + y"

A name alone becomes a folder of kernels/; a path becomes a kernel outside of the repository. ``from`` wraps
an existing Triton function, and ``reference`` gives the right answer by torch.
"""

from __future__ import annotations

import ast
import keyword
import re
import sys
import textwrap
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from jinja2 import Environment as Jinja
from jinja2 import FileSystemLoader, StrictUndefined

from kernel_pipeline import loading
from kernel_pipeline.contract import Value
from kernel_pipeline.errors import UserError
from kernel_pipeline.files import write_atomically
from pipeline import as_typed
from pipeline.command.options import NewConfig
from pipeline.command.run import run_stage, say
from pipeline.inspection import triton_source
from pipeline.inspection.triton_source import Argument, TritonFunction
from pipeline.points.catalog import CONF

TEMPLATES = Path(__file__).with_name("kernel_template")

FLOATS = ("float32", "bfloat16", "float16")
"""The dtypes of a kernel that computes in float32."""

KERNEL_ARGUMENTS = ("out: tl.tensor", "x: tl.tensor", "elements: tl.int64", "BLOCK_SIZE: tl.constexpr")
"""The arguments of the Triton kernel that an author starts from."""

LINE = 110
"""The length of a line."""

MODULES = {*sys.stdlib_module_names, "kernel_pipeline", "kernels", "numpy", "pipeline", "torch", "triton"}
"""Modules that a kernel's files may import; no kernel has such a name."""

TAKEN = {"check_dtype", "dtype", "elements", "grid", "launch_grid", "num_warps", "tl", "torch", "triton"}
"""Names with another meaning in the files; no argument of a wrapped function may have one."""

PURPOSE = {
    "__init__.py": "the problem, its work and tolerance, the providers and their parameters; without torch",
    "reference.py": "the inputs, and the right answer in float64",
    "torch.py": "the definition by torch",
    "triton.py": "the Triton provider",
}


@dataclass(frozen=True)
class KernelPaths:
    """The paths of a new kernel's files. ``where`` is the value of ``kernel=`` for commands, ``package`` the
    package of its files, empty outside of the repository."""

    name: str
    where: str
    folder: Path
    yaml: Path
    package: str

    @classmethod
    def named(cls, where: str) -> KernelPaths:
        """The paths for ``kernel=``. Raises UserError for an impossible or a taken name."""
        folder = Path(where).expanduser() if "/" in where else loading.ROOT / where
        name = folder.name
        if folder.resolve().parent == loading.ROOT:
            place = cls(name, name, loading.ROOT / name, CONF / f"{name}.yaml", f"kernels.{name}")
        else:
            place = cls(name, where.rstrip("/"), folder, folder / "kernel.yaml", "")
        if not re.fullmatch("[a-z][a-z0-9_]*", name) or keyword.iskeyword(name):
            raise UserError(f"kernel={where}: a kernel's name is a lower-case Python identifier, my_kernel.")
        if name in MODULES:
            raise UserError(f"kernel={where}: {name} is the name of a Python module; choose another.")
        if not place.package and name in loading.names():
            raise UserError(
                f"kernel={where}: {name} is a kernel of this repository, and both would share a ledger; "
                "choose another name."
            )
        for path in place._in_the_way():
            raise UserError(
                f"{_shown(path)} is there already, and nothing is overwritten; choose another name."
            )
        return place

    def _in_the_way(self) -> list[Path]:
        """Existing files that the new ones would replace or hide, without Python's caches."""
        beside = [self.yaml, *([self.folder.with_suffix(".py")] if self.package else [])]
        found = [path for path in beside if path.exists()]
        if self.folder.is_dir():
            return found + [path for path in sorted(self.folder.iterdir()) if path.name != "__pycache__"]
        return found + ([self.folder] if self.folder.exists() else [])


@dataclass(frozen=True)
class Operation:
    """An operation over vectors of one length. ``parameters`` are lines that declare the provider's
    parameters, ``block`` is the one for the elements of a program, ``launch`` are the launch's arguments;
    ``arguments`` are numbers beside the vectors; ``expression`` is None for an unknown reference."""

    summary: str
    inputs: Sequence[str]
    outputs: Sequence[str]
    expression: str | None
    operations: int
    parameters: Mapping[str, str]
    block: str
    launch: Sequence[str]
    dtypes: Sequence[str] = FLOATS
    arguments: Sequence[str] = ()
    function: str | None = None
    module: str | None = None
    """The name of a wrapped function, and of the file that it is copied into."""


def run(config: NewConfig) -> None:
    """Write the files, and print their purpose and the next command."""
    place = KernelPaths.named(config.kernel)
    copied = {}
    if config.source is None:
        if config.reference is not None:
            raise UserError("reference= is the right answer of a function that from=FILE.py:FUNCTION wraps.")
        operation = maximum(place.name)
    else:
        file, _, name = config.source.rpartition(":")
        if not file:
            raise UserError(f"from={config.source}: write from=FILE.py:FUNCTION.")
        wrapped = triton_source.read(Path(file).expanduser(), name)
        operation = around(wrapped, file, config.reference)
        copied[f"{operation.module}.py"] = _copy(wrapped, file)
    files = {place.folder / name: text for name, text in rendered(place, operation).items()}
    files |= {place.folder / name: text for name, text in copied.items()}
    files[place.yaml] = _template("kernel.yaml", place=place, dtypes=operation.dtypes)
    write(files)
    say("Written:")
    for path in files:
        purpose = PURPOSE.get(
            path.name, "problems, workloads and presets" if path == place.yaml else "the wrapped function"
        )
        say(f"  {_shown(path)}: {purpose}")
    if operation.expression is None:
        say(f"Every point fails until {_shown(place.folder / 'torch.py')} has the right answer.")
    elif config.source is None:
        say("It computes max(x, 0). Write your operation into torch.py, triton.py and __init__.py.")
    if place.package:
        say(f"For `dvc repro`, add {place.name} to the kernels of params.yaml.")
    say(f"Run next: {as_typed('sweep', f'kernel={place.where}', 'preset=smoke')}")


def maximum(name: str) -> Operation:
    """An operation to start from."""
    return Operation(
        summary="``out = max(x, 0)``, element by element.",
        inputs=("x",),
        outputs=("out",),
        expression="torch.relu(x)",
        operations=1,
        parameters=_parameters([Argument("BLOCK_SIZE", "block", triton_source.BLOCK)]),
        block="block_size",
        launch=("out", "x", "x.numel()", "BLOCK_SIZE=block_size"),
        function=f"_{name}",
    )


def around(wrapped: TritonFunction, origin: str, expression: str | None) -> Operation:
    """The operation of a Triton function of the file ``origin``. Raises UserError for an expression with
    unknown names, and for an argument with a name of ``TAKEN``.
    """
    short = {
        one.name: re.sub("_(ptr|pointer)$", "", one.name) for one in wrapped.with_role("input", "output")
    }
    short |= {one.name: one.name.lower() for one in wrapped.with_role("block", "choice", "number")}
    if len({*short.values()}) < len(short) or any(keyword.iskeyword(one) for one in {*short.values()}):
        short = {name: name for name in short}
    for name in short.values():
        if name in TAKEN:
            raise UserError(
                f"from={origin}:{wrapped.name}: call {name} something else; it means another thing here."
            )
    inputs, outputs, numbers = (
        [short[one.name] for one in wrapped.with_role(role)] for role in ("input", "output", "number")
    )
    operations = 1
    if expression is not None:
        expression = " ".join(expression.split())
        operations = _operations(expression, {*inputs, *numbers, "torch"}, len(outputs))
    last = max(i for i, one in enumerate(wrapped.arguments) if one.role not in ("block", "choice"))
    count = f"{inputs[0]}.numel()"
    given = [count if one.role == "elements" else short[one.name] for one in wrapped.arguments]
    named = [f"{one.name}={value}" for one, value in zip(wrapped.arguments, given, strict=True)]
    formula = "element by element" if expression is None else f"``{expression}``"
    return Operation(
        summary=f"``{wrapped.name}`` of {origin}: {formula}.",
        inputs=inputs,
        outputs=outputs,
        expression=expression,
        operations=operations,
        parameters=_parameters(wrapped.with_role("block", "choice")),
        block=short[wrapped.with_role("block")[0].name],
        # Positional: where Triton only compiles, it looks for tensors among these.
        launch=[*given[: last + 1], *named[last + 1 :]],
        # Many of Triton's functions take no bfloat16 unless values are made float32 first.
        dtypes=FLOATS if "float32" in wrapped.text else ("float32", "float16"),
        arguments=numbers,
        function=wrapped.name,
        module=f"triton_{re.sub(r'[^a-z0-9]+', '_', Path(origin).stem.lower()).strip('_')}",
    )


def _operations(expression: str, known: set[str], outputs: int) -> int:
    """The number of an expression's operations. Raises UserError for an unknown name."""
    try:
        tree = ast.parse(expression, mode="eval")
    except SyntaxError as error:
        raise UserError(f"reference={expression} is not a Python expression: {error.msg}.") from error
    nodes = list(ast.walk(tree))
    for node in nodes:
        if isinstance(node, ast.Name) and node.id not in known:
            raise UserError(f"reference={expression}: there is no {node.id}, but {', '.join(sorted(known))}.")
    written = len(tree.body.elts) if isinstance(tree.body, ast.Tuple) else 1
    if written != outputs:
        raise UserError(f"reference={expression}: write {outputs} with commas between, an output each.")
    return max(1, sum(isinstance(node, ast.BinOp | ast.UnaryOp | ast.Call | ast.Compare) for node in nodes))


def _parameters(arguments: Sequence[Argument]) -> dict[str, str]:
    """The line that declares each parameter of a provider, by name."""
    lines = {}
    for one in arguments:
        name, default = one.name.lower(), one.default
        assert default is not None, "parameters have defaults"
        values = _values(default, 4 if one.role == "block" else 2)
        words = [repr(value).replace("'", '"') for value in values]
        if values[0] != default:
            words.append(f"default={default!r}")
        if one.role == "block":
            words.append('unit=""')
        lines[name] = f"{name}: {type(default).__name__} = one_of({', '.join(words)})"
    return {**lines, "num_warps": 'num_warps: int = one_of(1, 2, 4, 8, default=4, unit="w")'}


def _values(default: Value, most: int) -> list[Value]:
    """A default and alternatives: powers of two around it, both values of a bool."""
    if isinstance(default, bool):
        return [False, True]
    if isinstance(default, int) and default > 0 and default.bit_count() == 1:
        factors = [2**i for i in range(most.bit_length())]
        return [
            *(default // f for f in reversed(factors) if default >= f),
            *(default * f for f in factors[1:]),
        ]
    return [default]


def rendered(place: KernelPaths, operation: Operation) -> dict[str, str]:
    """The text of each Python file. Raises UserError for a kernel's name with another meaning in them."""
    used = set()
    for text in _files("placeholder", place.package and "kernels.placeholder", operation).values():
        for node in ast.walk(ast.parse(text)):
            used |= {getattr(node, field, None) for field in ("id", "arg", "name")}
    if place.name in used:
        raise UserError(
            f"kernel={place.where}: its files call something else {place.name}; choose another name."
        )
    return _files(place.name, place.package, operation)


def _files(name: str, package: str, operation: Operation) -> dict[str, str]:
    vectors = [f"{one}: torch.Tensor" for one in operation.inputs]
    taken = [*vectors, *(f"{one}: int" for one in operation.arguments)]
    tuned = [line.partition(" = ")[0] for line in operation.parameters.values()]
    several = len(operation.outputs) > 1
    result = f"tuple[{', '.join(['torch.Tensor'] * len(operation.outputs))}]" if several else "torch.Tensor"
    called = operation.function if operation.module is None else f"{operation.module}.{operation.function}"
    given = {
        **asdict(operation),
        "name": name,
        "summary": textwrap.fill(operation.summary, LINE - 3, break_long_words=False),
        "times_inputs": _times(operation.inputs),
        "times_outputs": _times(operation.outputs),
        "quoted_dtypes": ", ".join(f'"{one}"' for one in operation.dtypes),
        "quoted_arguments": ", ".join(f'"{one}"' for one in operation.arguments)
        + "," * (len(operation.arguments) == 1),
        "doubled": ", ".join([*(f"{one}.double()" for one in operation.inputs), *operation.arguments]),
        "torch_head": _wrapped(f"def {name}(", taken, f") -> {result}:"),
        "reference_head": _wrapped("def reference(", taken, f") -> {result}:"),
        "kernel_head": _wrapped(f"def {operation.function}(", KERNEL_ARGUMENTS, ") -> None:"),
        "triton_head": _wrapped(f"def {name}(", [*taken, *tuned], f") -> {result}:"),
        "launch": _wrapped(f"    {called}[grid](", [*operation.launch, "num_warps=num_warps"], ")"),
        "reference_imports": _imports(package, ".Vector", f"torch.{name}", tensors="dtype_of, normal"),
        "triton_imports": _imports(
            package,
            *([f".{operation.module}"] if operation.module else []),
            tensors="check_dtype, launch_grid",
        ),
    }
    return {file: _template(file, **given) for file in PURPOSE}


def _times(some: Sequence[str]) -> str:
    """`` * n`` for a list of n, empty for one."""
    return f" * {len(some)}" if len(some) > 1 else ""


def _imports(package: str, *own: str, tensors: str) -> str:
    """Sorted import statements: from the kernel's own package, and from kernel_pipeline/tensors.py."""
    shared = f"from kernel_pipeline.tensors import {tensors}"
    parts = [one.rpartition(".")[::2] for one in own]
    lines = [
        f"from {package}{'.' * (bool(module) or not package)}{module} import {name}" for module, name in parts
    ]
    return "\n".join(sorted([shared, *lines])) if package else "\n".join([shared, "", *lines])


def _wrapped(head: str, items: Sequence[str], tail: str) -> str:
    """A call or a signature over as many lines as it needs."""
    if len(line := f"{head}{', '.join(items)}{tail}") <= LINE:
        return line
    margin = " " * (len(head) - len(head.lstrip()))
    if len(line := f"{margin}    {', '.join(items)}") <= LINE:
        return f"{head}\n{line}\n{margin}{tail}"
    return "\n".join([head, *(f"{margin}    {one}," for one in items), f"{margin}{tail}"])


def _copy(wrapped: TritonFunction, origin: str) -> str:
    """The file with a wrapped function, as its author wrote it."""
    return (
        f"# {wrapped.name} of {origin}, as its author wrote it. Copied by `python -m pipeline.new`:\n"
        "# all code that decides a measurement lies in the kernel's folder.\n"
        "# ruff: noqa\n# fmt: off\n# mypy: ignore-errors\n\n" + wrapped.text
    )


def _template(file: str, **given: object) -> str:
    jinja = Jinja(
        loader=FileSystemLoader(TEMPLATES),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    return jinja.get_template(f"{file}.j2").render(given)


def write(files: Mapping[Path, str]) -> None:
    """Write all files or, with a UserError, none."""
    written: list[Path] = []
    try:
        for path, text in files.items():
            write_atomically(path, text.encode())
            written.append(path)
    except UserError:
        for path in written:
            path.unlink()
        with suppress(OSError):
            next(iter(files)).parent.rmdir()
        raise


def _shown(path: Path) -> Path:
    """A path relative to the working folder, where it is below."""
    here = Path.cwd()
    return path.relative_to(here) if path.is_relative_to(here) else path


if __name__ == "__main__":
    run_stage("new", NewConfig, run)
