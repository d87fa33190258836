"""Statistics of samples and of paired times.

``quantiles`` summarises the samples of one timing. ``intervals.estimate`` estimates a ratio with its
interval, and ``intervals.verdicts`` decides for many ratios at once whether candidates differ.
"""
