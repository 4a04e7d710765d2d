"""The shipped small model behind ``glm5-ascend serve``, against transformers."""
