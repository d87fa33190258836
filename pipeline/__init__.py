"""How kernels are measured: one module a stage, and the instrument they share."""
