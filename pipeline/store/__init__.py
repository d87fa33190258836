"""The results as text files: records, ledgers, evidence, and the paths of the files.

``ledger.Ledger`` appends the measurements of one kernel on one GPU; ``results.load`` reads everything in a
folder.
"""
