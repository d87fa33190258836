"""This machine: its devices, compilers, environment and load, the locks on its devices, and limits on
processes.

``device.resolve`` finds a device, ``fingerprint.fingerprint`` returns the environment that its results depend
on, and ``lock.DeviceLock`` reserves it. ``confinement`` confines a process. Importing these modules does not
import torch.
"""
