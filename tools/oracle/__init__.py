"""Asks the real vLLM and vllm-ascend of a release; the command is ``tools.strict_oracle``."""
