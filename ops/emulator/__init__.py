"""Runs AscendC kernels on the host and checks their memory accesses and synchronisation.

Nothing here is an NPU: order is checked, time is modelled (README.md says what that leaves open).
"""
