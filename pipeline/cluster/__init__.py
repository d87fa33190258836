"""Sweeps on a Ray cluster: an actor on each GPU's host measures as a sweep on that host does.

``engine`` joins a cluster. ``cluster_devices.groups_of`` makes a group for each GPU model, with which
``sweep`` measures as with the devices of this host. ``actor.DeviceActor`` is the actor on a device.
"""
