"""Statistics of samples and paired times: quantiles without a distribution, and whether candidates differ.

``quantiles`` summarises the samples of one timing; ``intervals.estimate`` gives a ratio with its interval and
``intervals.verdicts`` decides for many at once.
"""
