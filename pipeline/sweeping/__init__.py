"""A sweep of one kernel: plan, compile ahead, measure, keep the rows, report.

``kernel_sweep.KernelSweep`` does it by a group of devices; ``cluster_sweep`` gives it groups of a cluster.
"""
