"""The native module of glt with the CUDA kernels; ``glt`` of the same version loads it in place of its own."""

__version__ = "0.1.0"
