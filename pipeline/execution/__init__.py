"""Measure points on a device: workers, the verifier, their supervisor, compiling ahead, the points' order.

``supervisor.Supervisor`` measures one point at a time, ``worker_pool.WorkerPool`` many. ``identity.Identity``
makes the keys of measurements.
"""
