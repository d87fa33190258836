"""What was measured, as text files: records, ledgers, evidence, and where each lies.

``ledger.Ledger`` appends the measurements of one kernel on one GPU; ``results.load`` reads everything in a
folder.
"""
