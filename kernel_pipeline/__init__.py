"""The library: the contract of a kernel's author, finding and loading kernels, and ``ops``, which calls them.

It needs torch and Triton, and knows neither ``kernels/`` nor ``pipeline/``.
"""
