"""Problems in KernelBench's and KernelBot's formats, and submissions to them: right ones, wrong ones and
cheats.

A problem's submissions are the files in the folder of its name.
"""
