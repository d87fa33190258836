"""Points on a device: a worker process that verifies and times, its supervisor, compiling ahead, the order.

``supervisor.Supervisor`` measures one point at a time, ``worker_pool.WorkerPool`` many; ``identity.Identity``
gives the key of a point's measurement.
"""
