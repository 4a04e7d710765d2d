"""The lightning indexer as ONNX functions; formula, layouts and tie rule in this folder's README.

``LightningIndexer`` takes padded batches (BSND), ``LightningIndexerPaged`` packed queries (TND)
and keys in pages (PA_BSND). Both hold the scores of all heads of their queries at once: long
prompts belong into chunks.
"""

from __future__ import annotations

from glm5_ascend.ops.onnx.names import HEADER
from glm5_ascend.ops.onnx.sizes import Sizes

# int64 [B, S1]: how many keys each query sees; 0 behind the last query of a request.
VISIBLE_KEYS = f"""
{HEADER}
VisibleKeys <sparse_mode> (size, query_lengths, key_lengths) => (visible) {{
    zero = Constant <value = int64 {{0}}> ()
    one = Constant <value = int64 {{1}}> ()
    last = Constant <value_ints = [-1]> ()
    q64 = Cast <to = 7> (query_lengths)
    k64 = Cast <to = 7> (key_lengths)
    queries = Unsqueeze (q64, last)
    keys = Unsqueeze (k64, last)
    i = Range (zero, size, one)
    hidden = Sub (keys, queries)
    count = Add (i, one)
    aligned = Add (hidden, count)
    causal = Max (aligned, zero)
    mode = Constant <value_int: int = @sparse_mode> ()
    three = Constant <value = int64 {{3}}> ()
    is_causal = Equal (mode, three)
    seen = Where (is_causal, causal, keys)
    real = Less (i, queries)
    visible = Where (real, seen, zero)
}}
"""

# F32 [B, S1, S2]: Σ_h weights_h · max(0, query_h · key).
INDEXER_SCORES = f"""
{HEADER}
IndexerScores (query, key, weights) => (score) {{
    q = Cast <to = 1> (query)
    k = Cast <to = 1> (key)
    size = Shape (query)
    w = Cast <to = 1> (weights)
    batch, queries, per_query, width = Split <num_outputs = 4> (size)
    all_heads = Mul (queries, per_query)
    rows_shape = Concat <axis = 0> (batch, all_heads, width)
    rows = Reshape <allowzero = 1> (q, rows_shape)
    head = Constant <value_ints = [2]> ()
    one_head = Squeeze (k, head)
    columns = Transpose <perm = [0, 2, 1]> (one_head)
    dots = MatMul (rows, columns)
    positive = Relu (dots)
    heads = Shape <end = 3> (query)
    keys = Shape <start = 1, end = 2> (key)
    by_head_shape = Concat <axis = 0> (heads, keys)
    by_head = Reshape <allowzero = 1> (positive, by_head_shape)
    row = Unsqueeze (w, head)
    total = MatMul (row, by_head)
    score = Squeeze (total, head)
}}
"""

# Best ``sparse_count`` of score [B, S1, S2], ascending, −1 padded; equal scores: lowest position
# first, as TopK of ONNX promises. Hidden positions score −inf like NaN ones, and lose against
# visible −inf because they come later.
BEST_POSITIONS = f"""
{HEADER}
BestPositions <sparse_count> (score, visible) => (indices) {{
    zero = Constant <value = int64 {{0}}> ()
    one = Constant <value = int64 {{1}}> ()
    last = Constant <value_ints = [-1]> ()
    size = Shape <start = -1> (score)
    keys = Squeeze (size)
    position = Range (zero, keys, one)
    limit = Unsqueeze (visible, last)
    seen = Less (position, limit)
    hidden = Not (seen)
    broken = IsNaN (score)
    unusable = Or (hidden, broken)
    worst = Constant <value = float {{-inf}}> ()
    ranked = Where (unusable, worst, score)
    wanted = Constant <value_int: int = @sparse_count> ()
    k = Reshape (wanted, last)
    lacking = Sub (k, size)
    none = Constant <value_ints = [0]> ()
    missing = Max (lacking, none)
    before = Constant <value_ints = [0, 0, 0, 0, 0]> ()
    pads = Concat <axis = 0> (before, missing)
    padded = Pad (ranked, pads, worst)
    best, chosen = TopK <axis = -1, largest = 1, sorted = 1> (padded, k)
    real = Less (chosen, limit)
    late = Constant <value = int64 {{9223372036854775807}}> ()
    keyed = Where (real, chosen, late)
    ascending, order = TopK <axis = -1, largest = 0, sorted = 1> (keyed, k)
    unused = Equal (ascending, late)
    minus = Constant <value = int64 {{-1}}> ()
    marked = Where (unused, minus, ascending)
    indices = Cast <to = 6> (marked)
}}
"""

LIGHTNING_INDEXER = f"""
{HEADER}
LightningIndexer <sparse_count, sparse_mode>
(query, key, weights, query_lengths, key_lengths) => (indices) {{
    score = glm5.ascend.IndexerScores (query, key, weights)
    queries = Shape <start = 1, end = 2> (query)
    size = Squeeze (queries)
    visible = glm5.ascend.VisibleKeys <sparse_mode: int = @sparse_mode>
        (size, query_lengths, key_lengths)
    chosen = glm5.ascend.BestPositions <sparse_count: int = @sparse_count> (score, visible)
    head = Constant <value_ints = [2]> ()
    indices = Unsqueeze (chosen, head)
}}
"""

# Whose query a row of a TND tensor is: request [T] and offset [T] in it, both clamped for rows of
# nobody, which ``owned`` [T] tells; starts and lengths [B], and the most queries of a request (one
# where only rows of nobody are left, so that they have a place too).
PACKED_ROWS = f"""
{HEADER}
PackedRows (query, query_ends) => (request, offset, owned, starts, lengths, most) {{
    zero = Constant <value = int64 {{0}}> ()
    one = Constant <value = int64 {{1}}> ()
    none = Constant <value_ints = [0]> ()
    single = Constant <value_ints = [1]> ()
    last = Constant <value_ints = [-1]> ()
    ends = Cast <to = 7> (query_ends)
    earlier = Slice (ends, none, last)
    starts = Concat <axis = 0> (none, earlier)
    lengths = Sub (ends, starts)
    size = Shape <end = 1> (query)
    tokens = Squeeze (size)
    token = Range (zero, tokens, one)
    column = Unsqueeze (token, last)
    behind = GreaterOrEqual (column, ends)
    passed = Cast <to = 7> (behind)
    owner = ReduceSum <keepdims = 0> (passed, single)
    count = Size (ends)
    owned = Less (owner, count)
    highest = Sub (count, one)
    request = Min (owner, highest)
    start = Gather <axis = 0> (starts, request)
    distance = Sub (token, start)
    offset = Where (owned, distance, zero)
    longest = ReduceMax <keepdims = 0> (lengths)
    some = Max (longest, one)
    most = Min (some, tokens)
}}
"""

# Padded copies [B, most, ..] of packed rows [T, ..]; padding repeats some row.
UNPACK_ROWS = f"""
{HEADER}
UnpackRows (rows, starts, most) => (padded) {{
    zero = Constant <value = int64 {{0}}> ()
    one = Constant <value = int64 {{1}}> ()
    last = Constant <value_ints = [-1]> ()
    i = Range (zero, most, one)
    first = Unsqueeze (starts, last)
    wanted = Add (first, i)
    size = Shape <end = 1> (rows)
    highest = Sub (size, one)
    row = Min (wanted, highest)
    padded = Gather <axis = 0> (rows, row)
}}
"""

# [B, pages · block_size, 1, D] of a cache [blocks, block_size, 1, D].
GATHER_PAGES = f"""
{HEADER}
GatherPages (cache, block_table) => (rows) {{
    zero = Constant <value = int64 {{0}}> ()
    one = Constant <value = int64 {{1}}> ()
    table = Cast <to = 7> (block_table)
    table_size = Shape (table)
    blocks = Shape <end = 1> (cache)
    highest = Sub (blocks, one)
    positive = Max (table, zero)
    block = Min (positive, highest)
    pages = Gather <axis = 0> (cache, block)
    batch, per_request = Split <num_outputs = 2> (table_size)
    block_size = Shape <start = 1, end = 2> (cache)
    keys = Mul (per_request, block_size)
    row = Shape <start = 2> (cache)
    shape = Concat <axis = 0> (batch, keys, row)
    rows = Reshape <allowzero = 1> (pages, shape)
}}
"""

LIGHTNING_INDEXER_PAGED = f"""
{HEADER}
LightningIndexerPaged <sparse_count, sparse_mode>
(query, key, weights, query_ends, key_lengths, block_table) => (indices) {{
    request, offset, owned, starts, lengths, most = glm5.ascend.PackedRows (query, query_ends)
    q = glm5.ascend.UnpackRows (query, starts, most)
    w = glm5.ascend.UnpackRows (weights, starts, most)
    k = glm5.ascend.GatherPages (key, block_table)
    padded = glm5.ascend.LightningIndexer
        <sparse_count: int = @sparse_count, sparse_mode: int = @sparse_mode>
        (q, k, w, lengths, key_lengths)
    last = Constant <value_ints = [-1]> ()
    b = Unsqueeze (request, last)
    i = Unsqueeze (offset, last)
    where = Concat <axis = 1> (b, i)
    rows = GatherND (padded, where)
    axes = Constant <value_ints = [1, 2]> ()
    real = Unsqueeze (owned, axes)
    minus = Constant <value = int32 {{-1}}> ()
    indices = Where (real, rows, minus)
}}
"""

FUNCTIONS = (
    VISIBLE_KEYS,
    INDEXER_SCORES,
    BEST_POSITIONS,
    LIGHTNING_INDEXER,
    PACKED_ROWS,
    UNPACK_ROWS,
    GATHER_PAGES,
    LIGHTNING_INDEXER_PAGED,
)


def graph(
    sizes: Sizes, dtype: str, *, paged: bool, sparse_mode: int = 3, weights_dtype: str = ""
) -> str:
    """Graph with one call of the operator; inputs are named as in torch_npu.

    Args:
        sizes: heads, width and ``sparse_count``.
        dtype: ONNX name of the dtype of query and key.
        paged: TND queries with prefix sums and PA_BSND keys, instead of BSND both.
        sparse_mode: 3 or 0.
        weights_dtype: of the head weights where they have another one.
    """
    heads, width, count = sizes.index_heads, sizes.index_dim, sizes.index_topk
    weights_dtype = weights_dtype or dtype
    attributes = f"<sparse_count = {count}, sparse_mode = {sparse_mode}>"
    if paged:
        return f"""
        lightning_indexer (
            {dtype}[tokens, {heads}, {width}] query,
            {dtype}[blocks, block_size, 1, {width}] key,
            {weights_dtype}[tokens, {heads}] weights,
            int32[requests] actual_seq_lengths_query,
            int32[requests] actual_seq_lengths_key,
            int32[requests, pages] block_table
        ) => (int32[tokens, 1, {count}] sparse_indices) {{
            sparse_indices = glm5.ascend.LightningIndexerPaged {attributes}
                (query, key, weights, actual_seq_lengths_query, actual_seq_lengths_key, block_table)
        }}"""
    return f"""
    lightning_indexer (
        {dtype}[batch, queries, {heads}, {width}] query,
        {dtype}[batch, keys, 1, {width}] key,
        {weights_dtype}[batch, queries, {heads}] weights,
        int32[batch] actual_seq_lengths_query,
        int32[batch] actual_seq_lengths_key
    ) => (int32[batch, queries, 1, {count}] sparse_indices) {{
        sparse_indices = glm5.ascend.LightningIndexer {attributes}
            (query, key, weights, actual_seq_lengths_query, actual_seq_lengths_key)
    }}"""
