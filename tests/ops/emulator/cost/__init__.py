"""The cost model against formulas."""
