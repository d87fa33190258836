"""A sweep of one kernel: plan, compile ahead, measure, keep the rows, report.

``kernel_sweep.KernelSweep`` does it by a team of devices; ``cluster_sweep`` gives it teams of a cluster.
"""
