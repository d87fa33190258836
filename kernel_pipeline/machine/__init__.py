"""This machine: its devices, compilers, environment and load, and the locks on its devices.

``device.resolve`` finds a device, ``fingerprint.fingerprint`` returns the environment that its results depend
on, and ``lock.DeviceLock`` reserves it. Importing these modules does not import torch.
"""
