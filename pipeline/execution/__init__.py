"""The measurements of a sweep: the points' order, the control point, the devices.

``worker_pool.WorkerPool`` measures a schedule's points by the library's supervisors.
"""
