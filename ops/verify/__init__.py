"""Conformance suite of the operators, run on the machine of the user."""
