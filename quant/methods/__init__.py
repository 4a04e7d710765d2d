"""Calibrated accuracy methods: pure functions on tensors in the folded, rotated basis."""
