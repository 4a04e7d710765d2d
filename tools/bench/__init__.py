"""Measures the operators beside their peers; the command is ``tools.bench_ops``."""
