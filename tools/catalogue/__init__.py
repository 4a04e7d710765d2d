"""Reads what a release of vLLM and vllm-ascend accepts out of its Python, without running it."""
