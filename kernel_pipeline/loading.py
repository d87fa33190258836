"""Find and load kernels. A kernel is a folder.

``load`` imports a kernel's declaration, without torch. ``Loaded`` gives access to its files and functions.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import importlib
import importlib.util
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from .contract import ContractError, Kernel, Provider, summary

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
        """Return the argument with which ``load`` gives this kernel with a provider's own inputs and
        reference, if it has any. Raises KeyError for an unknown provider."""
        form = self.kernel.provider(provider).reference
        return self.where if form is None else f"{self.where}{FORM}{form}"

    def inputs(self, problem: Any, device: torch.device, seed: int) -> Tensors:
        """Return the seeded inputs of a problem on a device; on ``meta`` they have no data."""
        made: Tensors = tuple(self.module(self.kernel.reference).inputs(problem, device, seed))
        return made

    def outputs(self, problem: Any) -> tuple[tuple[tuple[int, ...], torch.dtype], ...]:
        """Return the shape and dtype of each output."""
        declared = self.module(load(self.where).kernel.reference).outputs(problem)
        return tuple((tuple(shape), dtype) for shape, dtype in declared)

    def expected(self, problem: Any, inputs: Tensors) -> Tensors:
        """Return the reference's outputs, in float64 or in integers."""
        return as_tuple(self.module(self.kernel.reference).reference(*inputs, **self.arguments(problem)))

    def comparison(self) -> Callable[[Any, Tensors, Tensors, Tensors], str | None] | None:
        """Return the kernel's own comparison of outputs, which replaces the tolerance, or None."""
        name = self.kernel.comparison
        if name is None:
            return None
        found: Callable[..., str | None] = getattr(self.module(load(self.where).kernel.reference), name)
        return found

    def arguments(self, problem: Any) -> dict[str, Any]:
        """Return the dimensions of a problem that entries take as named arguments, with their values."""
        return {name: getattr(problem, name) for name in self.kernel.arguments}

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


def as_tuple(made: Any) -> Tensors:
    """Return a tensor, or a tuple or list of tensors, as a tuple."""
    return tuple(made) if isinstance(made, (tuple, list)) else (made,)


_loaded: dict[str, Loaded] = {}


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
