"""Memory that the verifier and the worker share: the verifier writes inputs, the worker writes outputs.

On a CPU it is an anonymous file, whose descriptor both processes inherit. On a GPU it is device memory that
the verifier allocates and the worker maps by CUDA IPC, as torch.multiprocessing shares tensors. If a GPU
can't share memory, as in some containers and virtual GPUs, it is the file as well.
"""

from __future__ import annotations

import base64
import json
import mmap
import os
from collections.abc import Iterable
from contextlib import suppress
from math import ceil, prod
from pathlib import Path

import torch

from ..loading import Tensors
from ..timing.stopwatch import ALIGNMENT, span_of
from ..verification import Declared
from .protocol import Layout, Region

HANDLE = (
    *("storage_device", "storage_handle", "storage_size_bytes", "storage_offset_bytes"),
    *("event_handle", "event_sync_required"),
)
"""The arguments by which torch's rebuild_cuda_tensor maps memory of another process, without a counter."""

NO_COUNTER = {"ref_counter_handle": b"", "ref_counter_offset": 0}
"""A counter that can't be opened, so that a process which unmaps memory counts nothing."""


class SharedMemory:
    """One block of memory of a device. ``reserve`` allocates it in its owner, ``map`` maps it elsewhere.

    ``descriptor`` is the anonymous file's.
    """

    def __init__(self, device: torch.device, descriptor: int) -> None:
        self.device = device
        self.descriptor = descriptor
        self._region: Region | None = None
        self._block = torch.empty(0, dtype=torch.uint8)

    def reserve(self, size: int) -> Region:
        """Make the block at least ``size`` bytes long. Its content may be lost."""
        if self._region is None or self._region.bytes < size:
            self.release()
            os.ftruncate(self.descriptor, 0)
            handle = None
            if self.device.type == "cuda":
                self._block = torch.empty(size, dtype=torch.uint8, device=self.device)
                with suppress(RuntimeError):
                    handle = _handle(self._block)
            if handle is None:
                os.ftruncate(self.descriptor, size)
                self._block = _mapped(self.descriptor, size)
            self._region = Region(bytes=size, handle=handle)
        return self._region

    def map(self, region: Region) -> None:
        """Map the memory that the other process reserved."""
        if region != self._region:
            self._region, self._block = None, torch.empty(0, dtype=torch.uint8)
            if region.handle is None:
                self._block = _mapped(self.descriptor, region.bytes)
            else:
                self._block = _opened(region.handle, region.bytes)
            self._region = region

    def release(self) -> None:
        """Drop the block, which frees the memory in its owner and unmaps it in another process."""
        self._region, self._block = None, torch.empty(0, dtype=torch.uint8)

    def tensor(self, layout: Layout) -> torch.Tensor:
        """Return the tensor of a layout in this block."""
        return self.span(layout).as_strided(layout.shape, layout.stride)

    def span(self, layout: Layout) -> torch.Tensor:
        """Return all elements that a tensor spans, gaps included, in one dimension."""
        return self._block[layout.offset :][: span_bytes(layout)].view(dtype_of(layout))

    def spans(self, layout: Layout, count: int) -> torch.Tensor:
        """Return the spans of ``count`` tensors that follow each other, as rows."""
        first = self.span(layout)
        if not layout.apart:
            return first.expand(count, 0)
        rows = self._block[layout.offset :][: count * layout.apart].view(first.dtype)
        return rows.view(count, -1)[:, : first.numel()]


def dtype_of(layout: Layout) -> torch.dtype:
    """Return torch's dtype of a layout."""
    found: torch.dtype = getattr(torch, layout.dtype)
    return found


def span_bytes(layout: Layout) -> int:
    """Return the bytes from a tensor's first element to the end of its last element."""
    if prod(layout.shape) == 0:
        return 0
    steps = zip(layout.shape, layout.stride, strict=True)
    return (1 + sum((size - 1) * stride for size, stride in steps)) * dtype_of(layout).itemsize


def layouts(inputs: Tensors, outputs: Iterable[Declared], sets: int = 1) -> tuple[list[Layout], int]:
    """Place sets of inputs with their strides, and of contiguous outputs, in a block of memory.

    Returns the layouts of the first set and the bytes of all sets.
    """
    wanted = [(x.dtype, tuple(x.shape), x.stride(), span_of(x)) for x in inputs]
    wanted += [(dtype, shape, _contiguous(shape), prod(shape)) for shape, dtype in outputs]
    found, offset = [], 0
    for dtype, shape, stride, span in wanted:
        apart = ceil(span * dtype.itemsize / ALIGNMENT) * ALIGNMENT
        name = str(dtype).removeprefix("torch.")
        found.append(Layout(dtype=name, shape=shape, stride=stride, offset=offset, apart=apart))
        offset += sets * apart
    return found, offset


def like(layout: Layout, device: torch.device) -> torch.Tensor:
    """Allocate a tensor with a layout's dtype, shape and strides, outside of shared memory."""
    dtype = dtype_of(layout)
    block = torch.empty(span_bytes(layout) // dtype.itemsize, dtype=dtype, device=device)
    return block.as_strided(layout.shape, layout.stride)


def _contiguous(shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(prod(shape[place + 1 :]) for place in range(len(shape)))


def _mapped(descriptor: int, size: int) -> torch.Tensor:
    if size == 0:
        return torch.empty(0, dtype=torch.uint8)
    return torch.frombuffer(mmap.mmap(descriptor, size), dtype=torch.uint8)


def _handle(block: torch.Tensor) -> str:
    """Return the arguments by which other processes map a block, one after another.

    torch counts one process for a handle, and frees a block whose counter is 0 (CudaIPCTypes.cpp). Each
    process that unmaps the block takes one away. The counter is unsigned: with two processes it is huge, and
    with a killed one it stays, and torch keeps the block until the owner ends. So the count is taken back
    here, and the block is freed when its owner drops it.
    """
    from torch.multiprocessing.reductions import reduce_tensor

    _, (*_, device, handle, size, offset, _, counter, place, event, sync) = reduce_tensor(block)  # type: ignore[no-untyped-call]
    torch.UntypedStorage._release_ipc_counter(counter, place, device=device)  # type: ignore[no-untyped-call]
    values = (device, _text(handle), size, offset, _text(event), sync)
    return json.dumps(dict(zip(HANDLE, values, strict=True)))


def _opened(handle: str, size: int) -> torch.Tensor:
    from torch.multiprocessing.reductions import rebuild_cuda_tensor

    fields = json.loads(handle)
    for name in ("storage_handle", "event_handle"):
        fields[name] = base64.b64decode(fields[name])
    found: torch.Tensor = rebuild_cuda_tensor(  # type: ignore[no-untyped-call]
        tensor_cls=torch.Tensor,
        tensor_size=torch.Size((size,)),
        tensor_stride=(1,),
        tensor_offset=0,
        storage_cls=torch.UntypedStorage,
        dtype=torch.uint8,
        requires_grad=False,
        **NO_COUNTER,
        **fields,
    )
    return found


def _text(value: bytes) -> str:
    return base64.b64encode(value).decode()


def memory_available(device: torch.device) -> int:
    """Return the bytes that can still be allocated on the device."""
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return 0
