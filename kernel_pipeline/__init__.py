"""The library: the contract of a kernel's author, the loader of kernels, records, timers, and ``ops``, which
calls kernels. It needs torch, Triton, msgspec and nvidia-ml-py, and imports neither ``kernels/`` nor
``pipeline/``.
"""
