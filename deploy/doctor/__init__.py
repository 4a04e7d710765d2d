"""Whether machines are ready for an engine, and what a failed run's log says."""
