"""Measure points on a device: workers, the verifier, their supervisor, compiling ahead.

``supervisor.Supervisor`` measures one point at a time, in processes of its own.
"""
