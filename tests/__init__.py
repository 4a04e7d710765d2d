"""Tests; the package exists so that ``tests.support`` can be imported by name."""
