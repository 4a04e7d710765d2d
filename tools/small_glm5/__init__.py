"""Trainer of the small GLM-5.2 style model shipped in ``glm5_ascend/assets/small-glm5``."""
