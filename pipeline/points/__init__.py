"""A kernel's problems and configurations, and the points of a sweep.

``catalog.find`` returns a kernel with its YAML, ``plan.plan`` its points for a preset and pins.
"""
