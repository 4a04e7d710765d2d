"""Simulator mode: the vLLM plugin that serves GLM-5 (``glm_moe_dsa``) on a CPU."""
