"""Sweeps on a cluster of hosts: Ray starts a process on each GPU's host, which measures as a sweep here does.

``engine`` joins a cluster. ``team.teams_of`` gives a team for each model of GPU that it has; ``sweep``
measures with these as with the devices of this host. On each host runs a ``station``.
"""
