"""Keys of measurements: what makes a key, what a key covers, and what makes a row old.

``identity.Identity`` makes keys, ``closure.closure`` finds the source that a key covers, ``versions`` has the
versions of the measuring code, and ``old_rows`` says why rows are old.
"""
