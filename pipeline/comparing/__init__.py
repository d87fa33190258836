"""Compare two versions or two configurations of a kernel.

``kernel_comparison.KernelComparison`` compares one kernel on one device. ``bisection.first_slower`` searches
a line of commits. ``best.answer`` names the best configuration in the results.
"""
