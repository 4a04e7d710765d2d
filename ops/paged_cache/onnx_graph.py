"""Writing rows into cache pages as an ONNX function: returns the new cache."""

from __future__ import annotations

from glm5_ascend.ops.onnx.names import HEADER

# cache [blocks, block_size, 1, W] with rows [T, W] at slots [T]; slot -1 writes nothing.
WRITE_PAGED_ROWS = f"""
{HEADER}
WritePagedRows (cache, rows, slots) => (written) {{
    zero = Constant <value = int64 {{0}}> ()
    last = Constant <value_ints = [-1]> ()
    slot = Cast <to = 7> (slots)
    skipped = Less (slot, zero)
    kept = Not (skipped)
    places = NonZero (kept)
    front = Constant <value_ints = [0]> ()
    place = Squeeze (places, front)
    where = Gather <axis = 0> (slot, place)
    data = Gather <axis = 0> (rows, place)
    flat = Flatten <axis = 3> (cache)
    column = Unsqueeze (where, last)
    values = CastLike (data, cache)
    changed = ScatterND (flat, column, values)
    shape = Shape (cache)
    written = Reshape (changed, shape)
}}
"""

FUNCTIONS = (WRITE_PAGED_ROWS,)
