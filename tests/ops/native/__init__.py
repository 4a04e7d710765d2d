"""Tests of the C++ kernels below the operators: build, instruction sets, threads, arithmetic."""
