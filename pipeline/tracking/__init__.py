"""MLflow: ledgers, ad-hoc sweeps and comparisons as experiments and runs.

Nothing else of the pipeline talks to a tracker. The whole store can be made again from the files.
``publisher.publish`` is the entry point: ``ledgers`` turns files into plain runs, ``store`` writes them.
"""
