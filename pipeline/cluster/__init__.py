"""Sweeps on a cluster of hosts: Ray starts a process on each GPU's host, which measures as a sweep here does.

``engine`` is all that knows Ray. ``gathering.teams`` gives a team for each model of GPU that a cluster has;
``sweep`` measures with these as with the devices of this host. On each host runs a ``station``.
"""
