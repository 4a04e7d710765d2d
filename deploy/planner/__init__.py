"""Which layout is best: enumerate, rate, simulate, rank, and write the plan."""
