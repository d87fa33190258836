"""Sweeps on a Ray cluster: a station on each GPU's host measures as a sweep on that host does.

``engine`` joins a cluster. ``team.teams_of`` makes a team for each GPU model, with which ``sweep`` measures
as with the devices of this host. A ``station`` is the actor on a device.
"""
