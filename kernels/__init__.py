"""What is measured: a folder a kernel, and the modules and headers that several kernels share."""
