"""Native kernels for CPUs, chosen by instruction set at run time."""
