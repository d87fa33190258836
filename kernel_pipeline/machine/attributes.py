"""Print a GPU's attributes from the CUDA driver, in a separate process: ``python attributes.py UUID``.

``cuInit`` reads CUDA_VISIBLE_DEVICES only once per process, and a process that plans may set the variable
later. No CUDA context is created.
"""

from __future__ import annotations

import ctypes
import json
import sys

ATTRIBUTES = {"multiprocessors": 16, "l2_cache": 38, "major": 75, "minor": 76, "shared_memory": 97}
"""Values of CUdevice_attribute in cuda.h: MULTIPROCESSOR_COUNT, L2_CACHE_SIZE, COMPUTE_CAPABILITY_MAJOR and
_MINOR, MAX_SHARED_MEMORY_PER_BLOCK_OPTIN."""


def main(uuid: str) -> None:
    """Print the attributes of the GPU with that UUID as JSON."""
    cuda = ctypes.CDLL("libcuda.so.1")
    if code := cuda.cuInit(0):
        sys.exit(f"cuInit failed with {code}")
    count = ctypes.c_int()
    cuda.cuDeviceGetCount(ctypes.byref(count))
    for index in range(count.value):
        found = (ctypes.c_ubyte * 16)()
        cuda.cuDeviceGetUuid_v2(ctypes.byref(found), index)
        if bytes(found).hex() != uuid.lower().removeprefix("gpu-").replace("-", ""):
            continue
        values = {}
        for name, number in ATTRIBUTES.items():
            value = ctypes.c_int()
            cuda.cuDeviceGetAttribute(ctypes.byref(value), number, index)
            values[name] = value.value
        print(json.dumps(values))
        return
    sys.exit(f"no device has the UUID {uuid}")


if __name__ == "__main__":
    main(sys.argv[1])
