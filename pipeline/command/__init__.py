"""Command lines: Hydra composes conf/, a typed schema checks it, a mistake ends in one sentence.

``run.run_stage`` is what every command starts through.
"""
