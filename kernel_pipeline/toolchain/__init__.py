"""Build C++ and CUDA sources into libraries by ninja, load them, and read ptxas's reports.

``extension.build`` builds libraries that are missing or out of date, and ``extension.load`` loads them into
torch.
"""
