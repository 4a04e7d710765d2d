"""Operators and one decoder layer as ONNX functions."""
