"""Measures the Triton operators beside their peers on a GPU; the command is ``tools.bench_gpu``."""
