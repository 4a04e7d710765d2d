"""Calibration: the model's own forward over text, and what its activations say about rounding.

``documents`` → ``corpus`` (sequences of tokens) → ``session`` (layer after layer: ``layer_run``
over ``folded_store``'s weights, ``statistics``, ``solver``) → ``solution_store``, which the writer
of :mod:`glm5_ascend.quant` reads. ``sensitivity`` uses the same pieces to compare schemes.
"""
