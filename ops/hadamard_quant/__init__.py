"""Hadamard rotation of 128 values with int8 quantisation per token."""
