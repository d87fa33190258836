"""Faults and attacks at random, minutes long: ``python -m tests.campaign``.

    python -m tests.campaign
    python -m tests.campaign kills=20 parts=[kills] seed=7

``kills`` is how often a command is killed, ``parts`` are kills and disk, and
``seed`` repeats a campaign's dice. It works in copies of the tree in a temporary folder, on the CPU, and
prints a table: what was tried, how many rows were lost, and what was wrong. It exits with 1 unless both are
zero.

``ground`` is the copy, ``score`` the table; every other module is one part.
"""
