"""glm5-ascend: quantise, plan, serve and simulate GLM-5 for Ascend NPUs, on any CPU."""

__version__ = "0.1.0"
