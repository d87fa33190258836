"""What was measured, as text files: records, ledgers, evidence, and where each lies.

``ledger.Ledger`` appends the measurements of one kernel on one GPU; ``results.load`` reads all that a folder
holds.
"""
