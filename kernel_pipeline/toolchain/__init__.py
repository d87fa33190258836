"""C++ and CUDA sources become libraries: compilers run by ninja, what the assembler reports, loading.

``extension.build`` makes what is missing or out of date, ``extension.load`` gives it to torch.
"""
