"""Parts of ``tools.kill_test``."""
