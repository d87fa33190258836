"""A kernel's problems and configurations, and the code that identifies a measurement.

``catalog.find`` returns a kernel with its YAML, ``plan.plan`` its points for a preset and pins; ``closure``
and ``cpp_digest`` find the definitions that decide what a provider does.
"""
