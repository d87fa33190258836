"""What a result depends on and the commit does not hold, and how much of it a provider feels."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from importlib import metadata
from typing import Any, Literal

from pydantic import Field

from kernels.contract import Provider
from pipeline.points.frozen import Record, digest
from pipeline.points.limits import Count, Name, Text

FLAGS = {
    "all": ("CUDA_", "NVIDIA_TF32_OVERRIDE", "CUBLAS", "CUDNN_", "PYTORCH_", "TORCH_"),
    "cpu": ("OMP_", "KMP_", "GOMP_", "MKL_", "OPENBLAS_", "ATEN_", "MALLOC_", "LD_PRELOAD"),
    "triton": ("TRITON_", "PTXAS_", "LLVM_"),
    "inductor": ("TORCHINDUCTOR_", "TORCHDYNAMO_", "INDUCTOR_"),
    "numba": ("NUMBA_",),
}
"""Environment variables that change results or speed, by how they begin, and who feels them: every provider,
those on a CPU, what Triton compiles, what torch.compile does, and what Numba compiles.
``torch.set_float32_matmul_precision`` has no variable: a provider that calls it says so in its source, which
its key covers."""

PLACES = (
    *("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "CUDA_HOME", "CUDA_PATH", "CUDA_CACHE_PATH"),
    *(
        "CUDA_VERSION",
        "CUDA_MODULE_LOADING",
        "TORCH_HOME",
        "TORCH_EXTENSIONS_DIR",
        "TORCH_LOGS",
        "TORCH_SHOW",
    ),
    *("CUDA_INC_PATH", "CUBLAS_VERSION", "CUDNN_VERSION", "CUDA_DRIVER_VERSION", "PYTORCH_VERSION"),
    *("PYTORCH_BUILD", "PYTORCH_HOME", "TORCH_ALLOW_EXTENSION", "TORCH_CUDA_ARCH_LIST", "TORCH_TRACE"),
    *("TRITON_CACHE_DIR", "TRITON_HOME", "TRITON_DUMP_DIR", "TRITON_INTERPRET"),
    *(
        "TRITON_CUOBJDUMP_PATH",
        "TRITON_NVDISASM_PATH",
        "TRITON_PRINT",
        "TRITON_KERNEL_DUMP",
    ),
    *("TORCHINDUCTOR_CACHE_DIR", "TORCHINDUCTOR_COMPILE_THREADS", "TORCH_COMPILE_DEBUG", "LLVM_DIR"),
    *("NUMBA_ENABLE_CUDASIM", "NUMBA_CACHE_DIR", "NUMBA_CUDA_LOG_LEVEL", "NUMBA_DUMP", "NUMBA_COLOR_SCHEME"),
)
"""Those among them that only say where something lies or what is printed, and those that the pipeline
sets."""


NUMBA = ("numba", "numba-cuda", "llvmlite", "nvidia-nvvm", "nvidia-nvjitlink")
"""The packages that decide what Numba makes of a kernel; those of them that are installed count."""


class Environment(Record):
    """What a result depends on and the commit does not hold. No time, host name or UUID, so that the
    same machine gives the same fingerprint on every run.

    ``flags`` are the environment variables of ``FLAGS``. ``host`` is a CPU's own: a model's name says little
    of a CPU's speed. ``image`` and ``base_image`` name a container's image and what that was built from, each
    with its digest. They are unkeyed, no part of the identity: an image that was built again is another one,
    and what a result depends on in it, the other fields say. So is ``l2_bytes``, the size of a GPU's L2
    cache, which its name says already."""

    gpu: Name
    name: Text
    kind: Literal["cpu", "cuda"]
    compute_capability: Text | None
    memory_mib: Count
    driver: Text | None
    cuda: Text | None
    torch: Text
    triton: Text
    python: Text
    nvcc: Text | None
    cxx: Text | None
    cpu: Text
    cpu_threads: Count
    platform: Text
    host: Text | None = None
    flags: dict[Text, Text] = Field(default_factory=dict)
    image: Text | None = None
    base_image: Text | None = None
    l2_bytes: Count | None = None

    @property
    def digest(self) -> str:
        """All of it but what is unkeyed."""
        return digest(self.model_dump(exclude=UNKEYED))

    @property
    def of_device(self) -> str:
        """What a device's own limits depend on: another host with the same GPU, driver and packages has the
        same."""
        return digest([self._of_every_provider(), self._flags("all")])

    def keyed_for(self, provider: Provider) -> dict[str, Any]:
        """What of it a provider's numbers depend on: its language's tools, and on a GPU not the host."""
        found = self._of_every_provider()
        flags = found.pop("flags", {}) | self._flags("all")
        if provider.language in ("triton", "gluon") or provider.compiled or provider.package:
            found["triton"] = self.triton
            flags |= self._flags("triton")
        if provider.compiled:
            flags |= self._flags("inductor")
        if provider.language == "cuda":
            found["nvcc"] = self.nvcc
        if provider.language == "cpp" or (provider.compiled and self.kind == "cpu"):
            found["cxx"] = self.cxx
        if provider.language == "numba":
            found["numba"] = _versions(NUMBA)
            flags |= self._flags("numba")
        if provider.package:
            with suppress(metadata.PackageNotFoundError):
                found["package"] = f"{provider.package} {metadata.version(provider.package)}"
        return {**found, "flags": flags}

    def _of_every_provider(self) -> dict[str, Any]:
        names = ["gpu", "compute_capability", "driver", "cuda", "torch"]
        if self.kind == "cpu":
            names += ["python", "cpu", "cpu_threads", "platform", "host"]
        found = {name: getattr(self, name) for name in names}
        return {**found, "flags": self._flags("cpu")} if self.kind == "cpu" else found

    def _flags(self, who: str) -> dict[str, str]:
        return {name: value for name, value in self.flags.items() if name.startswith(FLAGS[who])}


def _versions(packages: Iterable[str]) -> dict[str, str]:
    """The versions of those that are installed."""
    found = {}
    for package in packages:
        with suppress(metadata.PackageNotFoundError):
            found[package] = metadata.version(package)
    return found


UNKEYED = {"image", "base_image", "l2_bytes"}
"""The fields of an environment that a result does not depend on."""
