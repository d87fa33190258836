"""The measured kernels: a folder for each, and the modules and headers that several kernels share."""
