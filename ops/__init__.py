"""Fused operators of GLM-5, one folder each, with every backend side by side."""
