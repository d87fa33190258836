"""Decide whether one candidate is faster than another, from side-by-side rounds alone.

The samples of one run do not show how much two processes or two days differ. ``Rounds`` therefore measures
candidates one after the other in fresh processes, round after round; ``statistics`` derives verdicts from
their paired times. ``opponents`` finds the two sides of a comparison, ``finalists`` the best configuration of
each provider.
"""
