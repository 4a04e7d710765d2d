"""Whether a command starts, and starts what was meant, in a given release of vllm-ascend."""
