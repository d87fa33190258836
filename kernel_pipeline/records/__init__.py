"""Measurements as frozen, validated records: points, outcomes, timings, environments, ceilings. ``Record`` is
the base of all of them; begin with ``Point`` and ``Measurement``."""
