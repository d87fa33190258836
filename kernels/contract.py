"""The contract between a kernel and whoever measures it.

A kernel is an operation: how its inputs are made, what the right answer is, and how many bytes and
floating-point operations the answer needs at least. A provider is one implementation of it. Nothing
here knows of timing, DVC, Hydra or MLflow.
"""

from __future__ import annotations

import functools
import importlib.metadata
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch

from kernels.point import DTYPE_NAMES, Point, Shape

DTYPES: dict[str, torch.dtype] = {name: getattr(torch, name) for name in DTYPE_NAMES}
"""torch's dtype for each name."""

Inputs = tuple[torch.Tensor, ...]

MAX_HELD_ROW = 65536
"""Most columns of a row that a Triton program holds: 64 float32 registers a thread at 32 warps, the most
there are."""

MAX_ELEMENTS = 64
"""Most elements of a step that a thread of a Triton program takes on, a quarter of the registers it can have:
with more, no launch was any provider's fastest on an H200, and Triton compiled for seconds or, in the widest
rows, tens of seconds."""


@dataclass(frozen=True)
class Tolerance:
    """Largest error allowed against the float64 reference: ``|out - ref| <= atol + rtol * |ref|``."""

    rtol: float
    atol: float


@dataclass(frozen=True)
class Provider:
    """One implementation of a kernel.

    call:
        ``call(*inputs, **axes) -> Tensor``, a new tensor; takes exactly the axes listed in ``axes``.
        Raises ValueError with a sentence for inputs it refuses.
    axes:
        The members of ``AXES`` it obeys. torch obeys none, so it is measured once a size.
    source:
        File in the kernel's folder that holds the implementation; a point is measured again when it
        changes. A ``.cu`` or ``.cpp`` file is an extension that must be built and loaded
        before ``call``; ``call`` then finds it as ``torch.ops.<kernel>.<provider>``.
    devices:
        Device types on which it can be timed. A Triton provider is verified on a CPU by the interpreter.
    refuse:
        ``refuse(point, shape)`` answers why the provider can't do a point that its axes allow
        ("one block holds a row: ..."), or None when it can.
    package:
        The PyPI package that brings the implementation, for a peer: neither ours nor torch's. What
        a peer gives is verified like any other's, but its limits are its own.
    """

    name: str
    call: Callable[..., torch.Tensor]
    axes: tuple[str, ...] = ()
    source: str = "__init__.py"
    devices: tuple[str, ...] = ("cpu", "cuda")
    dtypes: tuple[str, ...] = tuple(DTYPES)
    refuse: Callable[[Point, Shape], str | None] = field(default=lambda point, shape: None)
    package: str | None = None

    @property
    def is_triton(self) -> bool:
        """Whether the interpreter can run it where there is no GPU."""
        return self.source == "triton.py"

    @property
    def compiles_itself(self) -> bool:
        """Whether the first call for a shape compiles it, in the process that calls."""
        return isinstance(self.call, compiled)

    @property
    def extension(self) -> str | None:
        """Name of the C++ or CUDA source that must be built and loaded first, or None."""
        return self.source if self.source.endswith((".cu", ".cpp")) else None

    def unsupported(self, point: Point, shape: Shape) -> str | None:
        """Why this provider can't do the point on any device, or None when it can."""
        if point.dtype not in self.dtypes:
            return f"{self.name} has no {point.dtype}; it has {', '.join(self.dtypes)}"
        return self.refuse(point, shape)


@dataclass(frozen=True)
class Kernel:
    """An operation, its reference and its providers.

    size_means:
        What ``size`` stands for, as a reader of a table or an axis label needs it.
    shape:
        ``shape(size)``: the shape of the first input at that size.
    inputs:
        ``inputs(shape, dtype, device, seed)``: seeded random inputs; never zeros.
    reference:
        ``reference(*inputs)``: the answer in float64, from inputs of any dtype.
    bytes:
        ``bytes(shape, dtype)``: the fewest bytes moved, each input read once, each output written once.
    flops:
        ``flops(shape)``: floating-point operations, as the kernel's docstring counts them.
    tolerance:
        ``tolerance(dtype)``: how far an output may be from the reference.
    largest:
        The largest finite magnitude of an element for which the tolerance is promised.
    baseline:
        The provider that the others are compared with ("x torch").
    """

    name: str
    size_means: str
    shape: Callable[[int], Shape]
    inputs: Callable[[Shape, torch.dtype, torch.device, int], Inputs]
    reference: Callable[..., torch.Tensor]
    bytes: Callable[[Shape, torch.dtype], int]
    flops: Callable[[Shape], int]
    tolerance: Callable[[torch.dtype], Tolerance]
    providers: Sequence[Provider]
    largest: float = math.inf
    baseline: str = "torch"

    def provider(self, name: str) -> Provider:
        """Raises KeyError for a name that is not a provider of this kernel."""
        return {provider.name: provider for provider in self.providers}[name]

    @property
    def rows(self) -> int | None:
        """The rows that every shape has, and of which a point may name another number; None where they follow
        from the size.

        Read off ``shape`` and no field of its own: a kernel's source is part of the keys of its measurements,
        and naming the number there a second time would have all of them made again.
        """
        one, other = self.shape(1)[0], self.shape(2)[0]
        return one if one == other else None

    def shape_of(self, point: Point) -> Shape:
        """The shape of the first input at a point: its size's, with the point's rows where it names any."""
        shape = self.shape(point.size)
        return shape if point.rows is None else (point.rows, *shape[1:])

    def interpreted_shape(self, point: Point) -> Shape:
        """``shape_of`` with few rows, for Triton's interpreter, which is slow.

        Few rows are enough: programs that differ only in their row run the same code.
        """
        rows, *rest = self.shape_of(point)
        return (min(rows, 8), *rest)


def installed(*peers: Provider) -> tuple[Provider, ...]:
    """Those of the peers whose package is installed; a kernel has no others. Imports none of them."""

    def is_there(package: str) -> bool:
        try:
            return bool(importlib.metadata.version(package))
        except importlib.metadata.PackageNotFoundError:
            return False

    return tuple(peer for peer in peers if peer.package is None or is_there(peer.package))


def numel(shape: Shape) -> int:
    """Number of elements in a tensor of this shape."""
    return math.prod(shape)


def read_once_write_once(shape: Shape, dtype: torch.dtype) -> int:
    """Bytes of an operation that reads one tensor and writes one like it."""
    return 2 * numel(shape) * dtype.itemsize


def normal_inputs(shapes: Sequence[Shape], dtype: torch.dtype, device: torch.device, seed: int) -> Inputs:
    """Tensors of standard normal values, the same for the same seed on the same kind of device."""
    if device.type == "meta":
        return tuple(torch.empty(shape, dtype=dtype, device=device) for shape in shapes)
    generator = torch.Generator(device=device).manual_seed(seed)
    return tuple(
        torch.randn(shape, generator=generator, device=device, dtype=torch.float32).to(dtype)
        for shape in shapes
    )


def normal_input(shape: Shape, dtype: torch.dtype, device: torch.device, seed: int) -> Inputs:
    """One tensor of standard normal values."""
    return normal_inputs([shape], dtype, device, seed)


def row_too_wide(columns: int) -> str | None:
    """Why a Triton program can't hold rows of so many columns, or None when it can."""
    if columns > MAX_HELD_ROW:
        return f"one block holds a row: {columns} columns > {MAX_HELD_ROW}"
    return None


def threads_too_full(elements: int, num_warps: int) -> str | None:
    """Why so many elements are not for so few warps of a Triton program, or None when they are."""
    of_thread = elements // (32 * num_warps)
    if of_thread > MAX_ELEMENTS:
        return f"too much for the registers: {of_thread} elements a thread > {MAX_ELEMENTS}"
    return None


def refuse_wide_rows(point: Point, shape: Shape) -> str | None:
    """Why a Triton program can't hold such a row, or not with so few warps, or None when it can."""
    reason = row_too_wide(shape[-1])
    if reason is None and point.num_warps is not None:
        padded = 1 << (shape[-1] - 1).bit_length()
        reason = threads_too_full(padded, point.num_warps)
    return reason


def refuse_full_threads(point: Point, shape: Shape) -> str | None:
    """Why a block_size is not for so few warps of a Triton program, or None when it is."""
    return threads_too_full(point.block_size or 0, point.num_warps or 1)


def refuse_narrow_tiles(point: Point, shape: Shape) -> str | None:
    """Why a Triton program that holds rows whole can't obey a block_size, or None when it can."""
    if point.block_size is not None and shape[-1] > point.block_size:
        return f"one block holds whole rows: {shape[-1]} columns > block_size {point.block_size}"
    return row_too_wide(shape[-1]) or refuse_full_threads(point, shape)


def check_matrix(kernel: str, x: torch.Tensor) -> None:
    """Raises ValueError for a tensor that has no rows of at least one column."""
    if x.dim() != 2:
        raise ValueError(f"{kernel} needs rows and columns, got shape {tuple(x.shape)}")
    if x.shape[1] == 0:
        raise ValueError(f"{kernel} needs at least one column, got shape {tuple(x.shape)}")


def check_parameter(kernel: str, name: str, parameter: torch.Tensor, x: torch.Tensor) -> None:
    """Raises ValueError for a weight or bias that is not one number for each column of x, of its dtype."""
    if parameter.shape != x.shape[1:] or parameter.dtype != x.dtype:
        raise ValueError(
            f"{kernel} needs a {name} of shape ({x.shape[1]},) and {x.dtype}, "
            f"got shape {tuple(parameter.shape)} and {parameter.dtype}"
        )


def check_dtype(x: torch.Tensor) -> None:
    """Raises ValueError for a dtype that a kernel which computes in float32 can't serve in full."""
    if x.dtype not in DTYPES.values():
        raise ValueError(f"needs {', '.join(DTYPES)}, got {str(x.dtype).removeprefix('torch.')}")


UNROLLED_COLUMNS = 32768
"""Columns up to which a Triton kernel that streams rows is compiled for their number."""


def known_columns(columns: int) -> int | None:
    """The number of columns to compile a Triton kernel for, or None for one that takes any.

    Loops over a known number of columns come out unrolled, with more loads under way: on an H200 layernorm of
    16384 bfloat16 columns took 65.9 us instead of 74.7. Of 65536 columns nothing was gained.
    """
    return columns if columns <= UNROLLED_COLUMNS else None


FEW_ROWS = 64
"""Rows up to which a Triton kernel that holds rows is compiled for their number of columns."""


def known_columns_of_few(rows: int, columns: int) -> int | None:
    """The same for a Triton kernel that holds rows: few rows take as long as its instructions do, and for a
    known number there are fewer.

    On an H200 layernorm of 37 rows of 781 float32 columns took 1.95 us instead of 2.07; but rmsnorm of 4096
    rows 8.2 instead of 7.6.
    """
    return columns if rows <= FEW_ROWS else None


def elements_together(x: torch.Tensor, block_size: int) -> int:
    """How many neighbouring elements of a matrix a thread of a Triton program that takes ``block_size`` in a
    step loads at once: 16 bytes of them where Triton knows that all rows begin at multiples of 16 bytes, else
    one."""
    aligned = x.data_ptr() % 16 == 0 and x.stride(0) % 16 == 0
    return min(16 // x.element_size(), block_size) if aligned else 1


def launch_grid(programs: int) -> tuple[int]:
    """A one-dimensional launch grid. Raises ValueError for more programs than CUDA can launch."""
    if programs > 2**31 - 1:
        raise ValueError(f"a launch has at most 2**31 - 1 programs, this needs {programs}")
    return (programs,)


class compiled:  # noqa: N801 - a decorator of functions, like functools.partial
    """``torch.compile(function)``, made on the first call, compiled anew for each shape."""

    def __init__(self, function: Callable[..., torch.Tensor]) -> None:
        self.function = function

    def __call__(self, *inputs: torch.Tensor) -> torch.Tensor:
        """The function's result."""
        return self._once(*inputs)

    @functools.cached_property
    def _once(self) -> Callable[..., torch.Tensor]:
        import torch._dynamo

        # Past 8 shapes Dynamo by default runs the function eagerly, and a sweep would time that.
        torch._dynamo.config.recompile_limit = torch._dynamo.config.accumulated_recompile_limit = 2**20
        return torch.compile(self.function, dynamic=False, fullgraph=True)
