"""Find and load kernels. A kernel is a folder.

``load`` imports a kernel's declaration, without torch. ``Loaded`` gives access to its files and functions.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import importlib
import importlib.util
import inspect
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from . import bounded
from .contract import Kernel, Provider, summary
from .declared import ContractError
from .structures import adapted, declared, filled, flat, in_row, is_row, structure

if TYPE_CHECKING:
    import torch

LIBRARY = Path(__file__).parent

INSTALLED = LIBRARY / "kernels"

ROOT = INSTALLED if INSTALLED.is_dir() else LIBRARY.parent / "kernels"
"""The folder of the kernels: beside this package in a checkout, inside it in an installation, because
``kernels`` is another project's package on PyPI."""

PACKAGE = f"{__package__}.kernels" if ROOT == INSTALLED else "kernels"

MOVED = {f"kernels.{name}" for name in ("contract", "numba_launch", "ops", "tensors", "threads", "toolchain")}
"""Former names of modules that kernels import; ``kernel_pipeline`` replaces ``kernels`` in them."""

FORM = ":"
"""The separator, in an address, between the kernel and the file that makes its inputs in another form."""

Tensors = tuple["torch.Tensor", ...]


def names() -> list[str]:
    """Return the names of this repository's kernels, without importing them."""
    return sorted(folder.name for folder in ROOT.iterdir() if (folder / "__init__.py").is_file())


@dataclass(frozen=True)
class Loaded:
    """A kernel's declaration with its folder.

    ``name`` is the folder's name, and ``package`` the package of its modules. ``where`` is an argument for
    ``load``: the name of a kernel of this repository, or the path of a folder outside.
    """

    name: str
    where: str
    folder: Path
    package: str
    kernel: Kernel
    summary: str

    @property
    def is_outside(self) -> bool:
        """Whether the kernel's folder is outside this repository."""
        return self.where != self.name

    def module(self, file: str) -> ModuleType:
        """Import a Python file of the folder."""
        try:
            return importlib.import_module(
                f"{self.package}.{Path(file).with_suffix('').as_posix().replace('/', '.')}"
            )
        except ModuleNotFoundError as error:
            raise _named_anew(error, self.folder / file) from error

    def address(self, provider: str) -> str:
        """Return the argument for which ``load`` returns this kernel with a provider's own inputs and
        reference, if the provider has them. Raises KeyError for an unknown provider.
        """
        form = self.kernel.provider(provider).reference
        return self.where if form is None else f"{self.where}{FORM}{form}"

    def inputs(self, problem: Any, device: torch.device, seed: int) -> Tensors:
        """Return the tensors of the seeded inputs of a problem on a device, in a row; on ``meta`` they have
        no data. Raises ContractError for an input that is no tensor."""
        made = tuple(flat(self._inputs(problem, device, seed)))
        if other := next((one for one in made if not hasattr(one, "data_ptr")), None):
            raise ContractError(
                f"inputs() gives {other!r}, which is neither a tensor nor None: declare it as a dimension, "
                "and name it in arguments=(...)."
            )
        return made

    def _inputs(self, problem: Any, device: torch.device, seed: int) -> Any:
        return self.module(self.kernel.reference).inputs(problem, device, seed)

    def given(self, problem: Any, inputs: Tensors) -> Any:
        """Return inputs in the structure in which ``inputs`` of the reference's file makes them."""
        of = self._structure(problem)
        return inputs if is_row(of) else filled(of, iter(inputs))

    def _structure(self, problem: Any) -> Any:
        import torch

        key = self.where, self.kernel.reference, problem
        if key not in _structures:
            _structures[key] = structure(self._inputs(problem, torch.device("meta"), 0))
        return _structures[key]

    def _declared(self, problem: Any, function: str = "outputs") -> Any:
        return getattr(self.module(load(self.where).kernel.reference), function)(problem)

    def outputs(self, problem: Any) -> tuple[tuple[tuple[int, ...], torch.dtype], ...]:
        """Return the shape and dtype of each output as processes share them: with the largest sizes of
        ``kernel.bounded`` outputs, and with places for the actual sizes at the end. Raises ContractError for
        a bounded output that is not there."""
        found, numbers = declared(self._declared(problem))[1], self.kernel.bounded
        if any(not 0 <= number < len(found) or not found[number][0] for number in numbers):
            raise ContractError(
                f"bounded={numbers} must number outputs that have an axis; outputs() declares {len(found)} "
                "outputs, from 0 on."
            )
        return (*found, *bounded.sizes(len(numbers)))

    def returned(self, problem: Any, outputs: Tensors) -> tuple[tuple[tuple[int, ...], torch.dtype], ...]:
        """Return the shape and dtype that each output of a call must have. The outputs' own sizes are used
        where they depend on the data."""
        found = declared(self._declared(problem))[1]
        return bounded.actual(found, outputs, self.kernel.bounded)

    def placed(self, problem: Any, outputs: Tensors) -> Tensors:
        """Return the outputs of a call as ``outputs`` declares them."""
        numbers = self.kernel.bounded
        return bounded.placed(self.outputs(problem), outputs, numbers) if numbers else outputs

    def expected(self, problem: Any, inputs: Tensors) -> Tensors:
        """Return the reference's outputs, in float64 or in integers."""
        reference = partial(self.module(self.kernel.reference).reference, **self.arguments(problem))
        given = self.given(problem, inputs)
        answer = reference(**given) if isinstance(given, dict) else reference(*given)
        return in_row(answer, declared(self._declared(problem))[0])

    def weights(self) -> tuple[int, ...]:
        """Return the places of the kernel's weights among the inputs. Raises ContractError for a name that is
        not an argument of the reference."""
        function = self.module(self.kernel.reference).reference
        names = list(inspect.signature(function).parameters)
        for name in self.kernel.weights:
            if name not in names:
                raise ContractError(
                    f"{self.folder / '__init__.py'}: weights names {name}, which is not an argument of "
                    f"reference({', '.join(names)})."
                )
        return tuple(place for place, name in enumerate(names) if name in self.kernel.weights)

    def comparison(self) -> Callable[[Any, Tensors, Tensors, Tensors], str | None] | None:
        """Return the kernel's own comparison of outputs, which replaces the tolerance, or None."""
        name, numbers = self.kernel.comparison, self.kernel.bounded
        if name is None:
            return None
        own: Callable[..., str | None] = getattr(self.module(load(self.where).kernel.reference), name)

        @functools.wraps(own)
        def compare(problem: Any, inputs: Tensors, outputs: Tensors, reference: Tensors) -> str | None:
            return own(problem, self.given(problem, inputs), bounded.trimmed(outputs, numbers), reference)

        return compare

    def arguments(self, problem: Any) -> dict[str, Any]:
        """Return the named arguments that entries take besides the inputs: dimensions of a problem."""
        return {name: getattr(problem, of) for name, of in self.kernel.dimension_of.items()}

    def entry(self, provider: Provider) -> Callable[..., Any]:
        """Return the function of a provider's entry. A library that it needs must be loaded before.

        With ``TRITON_INTERPRET=1`` in the environment before the first call Triton runs under its
        interpreter, and with ``NUMBA_ENABLE_CUDASIM=1`` Numba runs under its simulator.
        """
        if provider.file.endswith(".py"):
            found: Callable[..., Any] = getattr(self.module(provider.file), provider.function)
        else:
            import torch

            found = getattr(getattr(torch.ops, self.name), provider.function)
        if provider.compiled:
            from .compiled import compiled

            return compiled(found)
        return found

    def call(self, provider: Provider, problem: Any, parameters: Mapping[str, Any]) -> Callable[..., Any]:
        """Return a function that calls a provider's entry at a problem with the tensors of ``inputs``, and
        returns its outputs. See ``entry``."""
        kernel, formed = self.kernel, load(self.address(provider.name))
        of = formed._structure(problem)
        if provider.prepare is not None and not is_row(of):
            raise ContractError(
                f"{provider.name} has prepare, so inputs(problem, device, seed) must return a tuple of "
                "tensors, without lists, names or None."
            )
        workspaces = () if kernel.workspaces is None else self._declared(problem, kernel.workspaces)
        return adapted(
            partial(self.entry(provider), **self.arguments(problem), **parameters),
            of,
            self._declared(problem),
            workspaces,
            kernel.destination,
        )


def as_tuple(made: Any) -> Tensors:
    """Return a tensor, or a tuple or list of tensors, as a tuple."""
    return tuple(made) if isinstance(made, (tuple, list)) else (made,)


_loaded: dict[str, Loaded] = {}

_structures: dict[tuple[str, str, Any], Any] = {}
"""The structure of the inputs of each problem, by kernel and form."""


def load(where: str) -> Loaded:
    """Return the kernel with the given name, folder, or ``Loaded.address``. Raises KeyError for an unknown
    name, FileNotFoundError for a folder without ``__init__.py``, and ContractError, with the file, for an
    invalid declaration.
    """
    base, _, form = where.rpartition(FORM)
    if base and form.endswith(".py"):
        return _in_form(base, form)
    if where not in _loaded:
        if "/" in where or where.startswith("."):
            _loaded[where] = _from_folder(where)
        elif where in names():
            _loaded[where] = _declared(where, where, ROOT / where, f"{PACKAGE}.{where}")
        else:
            raise KeyError(where)
    return _loaded[where]


@functools.cache
def _in_form(where: str, form: str) -> Loaded:
    loaded = load(where)
    return dataclasses.replace(loaded, kernel=dataclasses.replace(loaded.kernel, reference=form))


def known() -> list[Loaded]:
    """Return every kernel that this process has loaded."""
    return list(_loaded.values())


def _from_folder(where: str) -> Loaded:
    folder = Path(where).expanduser().resolve()
    if not (folder / "__init__.py").is_file():
        raise FileNotFoundError(folder / "__init__.py")
    if folder.parent == ROOT:
        return load(folder.name)
    # The package's name is unique to the folder and the same in every process.
    package = f"_kernel_{hashlib.sha256(str(folder).encode()).hexdigest()[:12]}"
    if package not in sys.modules:
        spec = importlib.util.spec_from_file_location(
            package, folder / "__init__.py", submodule_search_locations=[str(folder)]
        )
        assert spec is not None and spec.loader is not None, "a file that is there has a loader"
        module = importlib.util.module_from_spec(spec)
        sys.modules[package] = module
        try:
            spec.loader.exec_module(module)
        except BaseException as error:
            del sys.modules[package]
            if isinstance(error, ModuleNotFoundError):
                raise _named_anew(error, folder / "__init__.py") from error
            if isinstance(error, ContractError):
                raise ContractError(f"{folder / '__init__.py'}: {error}") from error
            raise
    return _declared(folder.name, str(folder), folder, package)


def _named_anew(error: ModuleNotFoundError, file: Path) -> Exception:
    """Return the error to raise for a failed import: a sentence with the new name if the module was
    renamed."""
    if error.name not in MOVED:
        return error
    return ContractError(
        f"{file} imports {error.name}: write kernel_pipeline{error.name.removeprefix('kernels')}."
    )


def _declared(name: str, where: str, folder: Path, package: str) -> Loaded:
    try:
        module = importlib.import_module(package)
    except ContractError as error:
        raise ContractError(f"{folder / '__init__.py'}: {error}") from error
    kernel = getattr(module, "kernel", None)
    if not isinstance(kernel, Kernel):
        raise ContractError(f"{folder / '__init__.py'} declares no `kernel = Kernel(...)`.")
    return Loaded(name, where, folder, package, kernel, summary(module))
