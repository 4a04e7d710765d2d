"""Speed of the quantiser at the release's own shapes; see ``tools/bench_quant.py``."""
