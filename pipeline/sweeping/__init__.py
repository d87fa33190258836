"""A sweep of one kernel: plan, compile ahead, measure, keep the rows, report.

``kernel_sweep.KernelSweep`` sweeps a kernel on a group of devices. ``cluster_sweep`` runs such sweeps on the
groups of a cluster.
"""
