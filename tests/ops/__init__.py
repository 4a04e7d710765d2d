"""Operators against independent derivations."""
