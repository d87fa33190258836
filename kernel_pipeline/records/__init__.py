"""A measurement as frozen and checked records: the point, its outcome and its timing, the
environment, and what a device does at best. ``Record`` is the base of all of them; ``Point`` and
``Measurement`` are the ones to begin with."""
