"""Asks the real vLLM and vllm-ascend of a chosen release; the command is ``tools.strict_oracle``."""
