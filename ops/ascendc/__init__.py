"""Host side of the NPU backends: layouts, limits, the vendor's package, build and loading.

Nothing here has run on an NPU (README.md).
"""
