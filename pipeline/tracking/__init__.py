"""Publish ledgers, ad-hoc sweeps and comparisons to MLflow as experiments and runs.

No other package of the pipeline talks to a tracker. The whole store can be rebuilt from the files.
``publisher.publish`` is the entry point: ``ledgers`` turns files into plain runs, ``store`` writes them.
"""
