"""What can be measured: problems and configurations of a kernel, and what identifies a measurement of one.

``catalog.find`` gives a kernel with its YAML, ``plan.plan`` its points for a preset and pins; ``closure`` and
``cpp_digest`` say which definitions decide what a provider does.
"""
