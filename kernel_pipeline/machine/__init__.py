"""The machine at hand: its devices, its compilers, its environment, and who may measure on it now.

``device.resolve`` finds a device, ``environment.fingerprint`` says what its results depend on,
``lock.DeviceLock`` keeps others off it. Nothing here imports torch.
"""
