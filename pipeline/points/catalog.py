"""Find a kernel by its name or folder, with the workloads and presets of its YAML."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Annotated, Any, Literal, cast

import yaml
from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    SkipValidation,
    StringConstraints,
    Tag,
    ValidationError,
)

from kernel_pipeline import loading, problems, tracebacks
from kernel_pipeline.contract import Kernel
from kernel_pipeline.declared import ContractError, Value, Variable
from kernel_pipeline.errors import UserError, unknown
from kernel_pipeline.records.fields import NAME

from .. import ROOT

CONF = ROOT / "conf" / "kernel"

KERNELS = ROOT / "kernels"
"""The folder of the project's own kernels. In a checkout ``loading`` finds the same kernels by name."""

# Pydantic would search every installed package for plugins, and this project uses none.
os.environ["PYDANTIC_DISABLE_PLUGINS"] = "1"

LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""The YAML loader: libyaml's, which is faster, if PyYAML was built with it."""

SIZE = "size"
"""The name that stands for all of a kernel's size dimensions."""

NAMED = "named"
"""The only workload of a kernel outside of the repository without ``kernel.yaml``: the command line names its
dimensions."""

RESERVED = {
    *("kernel", "provider", "pin", "preset", "timing", "tracking", "device", "output", "artifacts", "seed"),
    *("remeasure", "audit", "retry", "allow", "debug", "experiment", "wait_s", "point_timeout_s"),
    *("search", "trials", "seconds", "ahead", "workload", SIZE),
}
"""Names with another meaning on command lines, which no dimension or parameter may have."""


def as_list(value: Any) -> Any:
    """Return a single value as a list of one; return lists, tuples and None as they are."""
    return value if value is None or isinstance(value, (list, tuple)) else [value]


Some = Annotated[tuple[Value, ...], BeforeValidator(as_list), Field(min_length=1)]
"""One value or a list of them."""

Unchecked = Annotated[tuple[SkipValidation[Value], ...], BeforeValidator(as_list), Field(min_length=1)]

Headline = Literal["gbps", "tflops"]
"""The rate by which people compare a kernel's providers."""


class Options(BaseModel):
    """Base class of options in YAML and on command lines. They are frozen, and unknown names are refused."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, defer_build=True)


class Workload(Options):
    """A named family of problems: the product of its lists of values, by dimension.

    ``size`` sets all of the kernel's size dimensions; a list for one of them overrides it. ``problems`` are
    written out one by one, and the lists complete each of them. ``x`` is the dimension on a plot's x axis.
    ``problems_of`` checks the values, because each dimension knows what it takes.
    """

    model_config = ConfigDict(frozen=True, extra="allow")
    __pydantic_extra__: dict[str, Unchecked]

    x: str
    size: Unchecked | None = None
    problems: tuple[dict[str, SkipValidation[Value]], ...] | None = None
    headline: Headline | None = None
    held_out: bool = False
    """The workload is measured like others, but finals choose at its problems as if they had not been
    measured."""
    plotted: bool = True
    """The report has a plot of the workload."""

    @property
    def lists(self) -> dict[str, tuple[Value, ...]]:
        """The values of each dimension that has a list of its own."""
        return dict(self.__pydantic_extra__ or {})


Lists = dict[str, Some]


def _kind_of(configured: Any) -> str:
    """Return the member of the union by which a value is validated, so that errors are about that member."""
    return {dict: "lists", list: "several", tuple: "several", type(None): "none"}.get(type(configured), "all")


Configurations = Annotated[
    Annotated[Literal["all"], Tag("all")]
    | Annotated[Lists, Tag("lists")]
    | Annotated[tuple[Lists, ...], Field(min_length=1), Tag("several")]
    | Annotated[None, Tag("none")],
    Discriminator(_kind_of),
]
"""``all`` values of all parameters, lists of values by parameter, several such mappings, each with its own
product, or None for the defaults alone."""


def several(configured: Configurations) -> tuple[Lists, ...]:
    """Return the mappings from parameter to values; none for ``all`` and for the defaults."""
    return (
        (configured,) if isinstance(configured, dict) else configured if isinstance(configured, tuple) else ()
    )


class Group(Options):
    """Workloads that a preset measures, with the configurations by provider; ``*`` stands for all other
    providers. A provider in ``without`` is measured only if it is named."""

    model_config = ConfigDict(frozen=True, extra="allow")
    __pydantic_extra__: dict[str, Configurations]

    workloads: Annotated[tuple[str, ...], BeforeValidator(as_list), Field(min_length=1)]
    without: Annotated[tuple[str, ...], BeforeValidator(as_list)] = ()

    @property
    def configurations(self) -> dict[str, Configurations]:
        """The configurations by provider, with ``*`` for all others."""
        return dict(self.__pydantic_extra__ or {})


class Span(Options):
    """The whole numbers from ``least`` to ``most`` that are multiples of ``multiple``."""

    least: int = Field(ge=1)
    most: int
    multiple: int = Field(default=1, ge=1)


class KernelConfig(Options):
    """A kernel's YAML: its workloads, the groups of workloads that each preset measures, the values of each
    dimension from which problems are drawn at random (``drawn``), and the providers of torch in separate
    operators, which a GPU's draws leave out because they are never the fastest (``unfused``)."""

    drawn: dict[str, Span | Some] = Field(default_factory=dict)
    unfused: tuple[str, ...] = ()
    workloads: dict[Annotated[str, StringConstraints(pattern=f"^{NAME}$", max_length=100)], Workload]
    presets: dict[str, Annotated[tuple[Group, ...], BeforeValidator(as_list), Field(min_length=1)]]


@dataclass(frozen=True)
class Entry:
    """A kernel and its YAML. ``path`` is None for a folder outside of the repository without the file."""

    loaded: loading.Loaded
    config: KernelConfig
    path: Path | None

    @property
    def name(self) -> str:
        """The kernel's name."""
        return self.loaded.name

    def groups(self, preset: str) -> tuple[Group, ...]:
        """Return the groups that a preset measures. Raises UserError for a preset that the kernel does not
        have."""
        if self.path is None:
            return (Group(workloads=(NAMED,)),)
        if preset not in self.config.presets:
            raise unknown(f"preset of {self.name}", preset, self.config.presets)
        return self.config.presets[preset]

    def x_dimension(self, workload: str) -> str:
        """Return the dimension on a workload's x axis."""
        declared = self.config.workloads.get(workload)
        return self.loaded.kernel.size[0] if declared is None or declared.x == "size" else declared.x

    def headline(self, workload: str) -> Headline:
        """Return the rate by which people compare providers in a workload: ``gbps`` or ``tflops``."""
        declared = self.config.workloads.get(workload)
        return (declared and declared.headline) or cast(Headline, self.loaded.kernel.headline)


def names() -> list[str]:
    """Return the names of the project's own kernels and, in an installation, of the library's kernels."""
    own = (path.parent.name for path in KERNELS.glob("*/__init__.py"))
    return sorted({*loading.names(), *own})


def find(where: str) -> Entry:
    """Return the kernel of that name, or in that folder, with its YAML.

    Raises UserError if the kernel or the YAML is missing or can't be read.
    """
    own = KERNELS / where
    is_own = own.parent == KERNELS and KERNELS.resolve() != loading.ROOT.resolve()
    try:
        loaded = loading.load(str(own) if is_own and (own / "__init__.py").is_file() else where)
    except KeyError:
        raise unknown("kernel", where, names()) from None
    except FileNotFoundError as missing:
        name = Path(where).name
        hint = f" The kernel {name} of this repository is kernel={name}." if name in loading.names() else ""
        raise UserError(
            f"kernel={where}: {missing} does not exist; a kernel's folder needs it.{hint}"
        ) from None
    except ContractError as error:
        raise UserError(str(error)) from error
    except Exception as error:  # whatever an author's module raises when it is imported
        folder = Path(where).expanduser().resolve() if "/" in where else loading.ROOT / where
        raise UserError(
            f"kernel={where} can't be imported: {tracebacks.described(error, [folder])}"
        ) from error
    if loaded.is_outside and loaded.name in loading.names():
        raise UserError(
            f"kernel={where}: this repository also has a kernel {loaded.name}, and both kernels would share "
            "a ledger; give the folder another name."
        )
    for name in (loaded.name, *(provider.name for provider in loaded.kernel.providers)):
        if not re.fullmatch(NAME, name):
            raise UserError(
                f"kernel={where}: '{name}' can't be part of a file name; write letters, "
                "digits and any of '_.+-'."
            )
    parameters = {name for provider in loaded.kernel.providers for name in provider.variables()}
    if taken := sorted(RESERVED & {*loaded.kernel.dimensions(), *parameters}):
        raise UserError(
            f"{loaded.folder / '__init__.py'}: {taken[0]} is an option of the command line: rename the "
            f'dimension or parameter, and write arguments={{"{taken[0]}": "new_name"}} if entries take the '
            f"dimension as {taken[0]}."
        )
    path = loaded.folder / "kernel.yaml" if loaded.is_outside else CONF / f"{loaded.name}.yaml"
    if loaded.is_outside and not path.is_file():
        return Entry(loaded, KernelConfig(workloads={NAMED: Workload(x=SIZE)}, presets={}), None)
    return Entry(loaded, read(path, loaded), path)


def read(path: Path, loaded: loading.Loaded) -> KernelConfig:
    """Read a kernel's YAML and check it against the kernel's declaration. Raises UserError that names the
    file and the place."""
    try:
        config = KernelConfig.model_validate(_merged(path))
    except OSError as error:
        raise UserError(
            f"{error.filename} does not exist: list the problems of {loaded.name} in this file."
        ) from error
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        place = f"{mark.name}, line {mark.line + 1}" if mark else str(path)
        raise UserError(f"can't read {place}: {error.problem}.") from error
    except ValidationError as error:
        problem = error.errors()[0]
        place = ".".join(str(part) for part in problem["loc"])
        raise UserError(f"{path}: {place}: {problem['msg']}.") from error
    _check(config, path, loaded)
    return config


def _merged(path: Path, above: tuple[Path, ...] = ()) -> Any:
    """Return a file's content merged over its ``base:``, a file named relative to it. Mappings are merged,
    all other values are replaced."""
    content = _content(path)
    base = content.pop("base", None) if isinstance(content, dict) else None
    if base is None:
        return content
    if not isinstance(base, str) or path.parent / base in (path, *above):
        raise UserError(f"{path}: base: must be the name of another file, not {base}.")
    return _over(_merged(path.parent / base, (path, *above)), content)


def _content(path: Path) -> Any:
    with path.open() as file:  # PyYAML's errors name an open file
        try:
            content = yaml.load(file, LOADER)
        except yaml.YAMLError:  # PyYAML's own message is clearer than libyaml's
            file.seek(0)
            content = yaml.safe_load(file)
    return content or {}


def _over(below: Any, above: Any) -> Any:
    if not (isinstance(below, Mapping) and isinstance(above, Mapping)):
        return above
    return {**below, **{name: _over(below[name], v) if name in below else v for name, v in above.items()}}


def _check(config: KernelConfig, path: Path, loaded: loading.Loaded) -> None:
    """Check that the kernel declares every name in the YAML. Raises UserError."""
    kernel = loaded.kernel
    dimensions = kernel.dimensions()
    for word in config.drawn:
        if word not in dimensions:
            raise UserError(f"{path}: drawn: {unknown('dimension', word, dimensions)}")
    for word in config.unfused:
        if word not in (providers := [one.name for one in kernel.providers]):
            raise UserError(f"{path}: unfused: {unknown('provider', word, providers)}")
    for name, workload in config.workloads.items():
        named = {*workload.lists, *(key for problem in workload.problems or () for key in problem)}
        for word in (*named, *([] if workload.x == "size" else [workload.x])):
            if word not in dimensions:
                raise UserError(f"{path}: workload {name}: {unknown('dimension', word, dimensions)}")
        if workload.x != SIZE and dimensions[workload.x].type is tuple:
            raise UserError(
                f"{path}: workload {name}: x: {workload.x} is a list; name a dimension of one number."
            )
    for name, groups in config.presets.items():
        for group in groups:
            for word in group.workloads:
                if word not in config.workloads:
                    raise UserError(f"{path}: preset {name}: {unknown('workload', word, config.workloads)}")
            _check_group(group, kernel, f"{path}: preset {name}")


def _check_group(group: Group, kernel: Kernel, place: str) -> None:
    """Check that the kernel declares a group's providers, their parameters and the values. Raises
    UserError."""
    providers = {provider.name: provider for provider in kernel.providers}
    for name in (*group.configurations, *group.without):
        if name != "*" and name not in providers:
            raise UserError(f"{place}: {unknown('provider', name, providers)}")
    for name, configured in group.configurations.items():
        binding = [one.variables() for one in ([providers[name]] if name != "*" else providers.values())]
        known = {word for declared in binding for word in declared}
        for word, values in (one for lists in several(configured) for one in lists.items()):
            if word not in known:
                raise UserError(f"{place}: {unknown('parameter', word, sorted(known))}")
            takers = [declared[word] for declared in binding if word in declared]
            for value in values:
                _check_value(value, takers, place)


def _check_value(value: Value, variables: Sequence[Variable], place: str) -> None:
    """Check that one of the variables of a name takes a value. Raises UserError."""
    mistakes = []
    for variable in variables:
        try:
            variable.check(value)
        except ValueError as error:
            mistakes.append(f"{place}: {variable.name}: {error}.")
        else:
            return
    raise UserError(mistakes[0])


def problems_of(entry: Entry, workload: Workload, pins: Mapping[str, Sequence[Value]]) -> Iterator[Any]:
    """Yield each problem of a workload once, with the pinned values in place of its own. Raises UserError for
    a problem that lacks a dimension or has a value that is not allowed."""
    kernel = entry.loaded.kernel
    dimensions = kernel.dimensions()
    lists = {**workload.lists, **{name: pin for name, pin in pins.items() if name in dimensions}}
    lists = {name: tuple(dimensions[name].several(some)) for name, some in lists.items()}
    sizes: Sequence[Any] = pins.get(SIZE, workload.size or (None,))
    if SIZE in pins:
        lists = {name: some for name, some in lists.items() if name not in kernel.size or name in pins}
    if set(kernel.size) <= lists.keys():
        sizes = (None,)
    seen = set()
    for written in workload.problems or ({},):
        for size, *chosen in product(sizes, *lists.values()):
            of_size = {} if size is None else dict.fromkeys(kernel.size, size)
            named = dict(zip(lists, chosen, strict=True))
            # A problem that is written out overrides lists and sizes, and only pins override it.
            pinned_size = of_size if SIZE in pins else {}
            pinned = {name: value for name, value in named.items() if name in pins}
            values = {**of_size, **named, **written, **pinned_size, **pinned}
            if entry.path is None:
                _refuse_missing(entry, values)
            problem = problems.make(kernel.problem, values)
            key = problems.identity_of(problem)
            if key not in seen:
                seen.add(key)
                yield problem


def _refuse_missing(entry: Entry, values: Mapping[str, Value]) -> None:
    """Raise UserError if values lack dimensions without a default, for a kernel without ``kernel.yaml``."""
    declared = entry.loaded.kernel.dimensions().values()
    needed = [one.name for one in declared if one.default is None and one.same_as is None]
    if missing := [name for name in needed if name not in values]:
        raise UserError(
            f"{entry.loaded.folder}/kernel.yaml does not exist, so the command line must name each "
            f"dimension: add {' '.join(f'{name}=VALUE' for name in missing)}."
        )
