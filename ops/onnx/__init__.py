"""Export of the operators, and of whole decoder layers, as ONNX functions of domain glm5.ascend.

Importing this package imports neither onnx nor onnxruntime.
"""
