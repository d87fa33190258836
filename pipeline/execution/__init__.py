"""Points on a device: a worker process that verifies and times, its supervisor, compiling ahead, the order.

``supervisor.Supervisor`` answers for one point at a time, ``crew.Crew`` measures many; ``identity.Identity``
says what a measurement of a point would be known by.
"""
