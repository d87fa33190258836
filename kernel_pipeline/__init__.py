"""The library: the contract of a kernel's author, the loader of kernels, and ``ops``, which calls them. It
needs torch and Triton, and imports neither ``kernels/`` nor ``pipeline/``.
"""
