"""Judge kernels that other people or language models wrote, from the unedited files of a problem and its
submissions.

A format is a ``Problem``, which is read as data, and a ``ProblemCode``, which runs (``formats``). ``folder``
makes a kernel's folder of a problem and its submissions. Workers, verifiers and rounds measure that kernel as
any other. Only these processes and ``probe`` run the files' code.
"""
