"""The name that an installation has: there it is the package ``kernels``, here it holds the console script.

On PyPI ``kernels`` is another project's name. ``setup.py`` makes the one of the other.
"""
