"""What the Triton kernels of several operators share."""
