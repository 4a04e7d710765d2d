"""Sparse flash attention as ONNX functions; formula and layouts in this folder's README.

``SparseFlashAttention`` takes padded batches (BSND), ``SparseFlashAttentionPaged`` packed queries
(TND) and keys in pages (PA_BSND); both find the rows of the cache and share the arithmetic.
"""

from __future__ import annotations

from glm5_ascend.ops.onnx.names import HEADER
from glm5_ascend.ops.onnx.sizes import Sizes

# Chosen rows [T, K, d] in F32 of rows [F, d]; zero where unused, since memory that nobody wrote may
# hold NaN. A cache without rows gets one, so that unused entries have a row to name.
CHOSEN_ROWS = f"""
{HEADER}
ChosenRows (rows, where, used) => (chosen) {{
    shape = Shape (rows)
    one = Constant <value_ints = [1]> ()
    size, width = Split <num_outputs = 2> (shape)
    some = Min (size, one)
    lacking = Sub (one, some)
    extra_shape = Concat <axis = 0> (lacking, width)
    zeros = ConstantOfShape (extra_shape)
    extra = CastLike (zeros, rows)
    padded = Concat <axis = 0> (rows, extra)
    picked = Gather <axis = 0> (padded, where)
    wide = Cast <to = 1> (picked)
    last = Constant <value_ints = [-1]> ()
    column = Unsqueeze (used, last)
    zero = Constant <value = float {{0}}> ()
    chosen = Where (column, wide, zero)
}}
"""

# out [T, H, Lv], max and sum F32 [T, H] over rows ``where`` [T, K] that are ``used`` [T, K].
ATTEND_ROWS = f"""
{HEADER}
AttendRows <scale_value>
(query, key, value, query_rope, key_rope, where, used) => (out, peak, total) {{
    k_plain = glm5.ascend.ChosenRows (key, where, used)
    k_rope = glm5.ascend.ChosenRows (key_rope, where, used)
    v = glm5.ascend.ChosenRows (value, where, used)
    k = Concat <axis = -1> (k_plain, k_rope)
    q_plain = Cast <to = 1> (query)
    q_rope = Cast <to = 1> (query_rope)
    q = Concat <axis = -1> (q_plain, q_rope)
    columns = Transpose <perm = [0, 2, 1]> (k)
    product = MatMul (q, columns)
    scale = Constant <value_float: float = @scale_value> ()
    scaled = Mul (product, scale)
    middle = Constant <value_ints = [1]> ()
    row = Unsqueeze (used, middle)
    worst = Constant <value = float {{-inf}}> ()
    score = Where (row, scaled, worst)
    last = Constant <value_ints = [-1]> ()
    top = ReduceMax <keepdims = 1> (score, last)
    zero = Constant <value = float {{0}}> ()
    one = Constant <value = float {{1}}> ()
    empty = Equal (top, worst)
    base = Where (empty, zero, top)
    distance = Sub (score, base)
    weight = Exp (distance)
    mass = ReduceSum <keepdims = 1> (weight, last)
    nothing = Equal (mass, zero)
    divisor = Where (nothing, one, mass)
    summed = MatMul (weight, v)
    mean = Div (summed, divisor)
    out = CastLike (mean, query)
    peak = Squeeze (top, last)
    total = Squeeze (mass, last)
}}
"""

# Token positions [.., K · size] that indices [.., 1, K] name; −1 where unused.
TOKENS_OF_BLOCKS = f"""
{HEADER}
TokensOfBlocks <sparse_block_size> (sparse_indices) => (tokens) {{
    zero = Constant <value = int64 {{0}}> ()
    one = Constant <value = int64 {{1}}> ()
    minus = Constant <value = int64 {{-1}}> ()
    last = Constant <value_ints = [-1]> ()
    wide = Cast <to = 7> (sparse_indices)
    column = Unsqueeze (wide, last)
    size = Constant <value_int: int = @sparse_block_size> ()
    first = Mul (column, size)
    i = Range (zero, size, one)
    each = Add (first, i)
    unused = Less (column, zero)
    marked = Where (unused, minus, each)
    lead = Shape <end = -2> (sparse_indices)
    count = Shape <start = -1> (sparse_indices)
    slots = Mul (count, size)
    shape = Concat <axis = 0> (lead, slots)
    tokens = Reshape <allowzero = 1> (marked, shape)
}}
"""

SPARSE_FLASH_ATTENTION = f"""
{HEADER}
SparseFlashAttention <scale_value, sparse_block_size, sparse_mode>
(query, key, value, sparse_indices, query_rope, key_rope, query_lengths, key_lengths)
=> (out, softmax_max, softmax_sum) {{
    zero = Constant <value = int64 {{0}}> ()
    one = Constant <value = int64 {{1}}> ()
    last = Constant <value_ints = [-1]> ()
    queries = Shape <start = 1, end = 2> (query)
    size = Squeeze (queries)
    visible = glm5.ascend.VisibleKeys <sparse_mode: int = @sparse_mode>
        (size, query_lengths, key_lengths)
    tokens = glm5.ascend.TokensOfBlocks <sparse_block_size: int = @sparse_block_size>
        (sparse_indices)
    limit = Unsqueeze (visible, last)
    named = GreaterOrEqual (tokens, zero)
    seen = Less (tokens, limit)
    used = And (named, seen)
    first = Constant <value_ints = [0]> ()
    batch_size = Shape <end = 1> (query)
    batch = Squeeze (batch_size)
    request = Range (zero, batch, one)
    axes = Constant <value_ints = [1, 2]> ()
    b = Unsqueeze (request, axes)
    key_size = Shape <start = 1, end = 2> (key)
    start = Mul (b, key_size)
    row = Add (start, tokens)
    where = Where (used, row, zero)
    all_queries = Mul (batch_size, queries)
    slots = Shape <start = 2> (tokens)
    flat_slots = Concat <axis = 0> (all_queries, slots)
    flat_where = Reshape <allowzero = 1> (where, flat_slots)
    flat_used = Reshape <allowzero = 1> (used, flat_slots)
    q_width = Shape <start = 2> (query)
    q_shape = Concat <axis = 0> (all_queries, q_width)
    q = Reshape <allowzero = 1> (query, q_shape)
    rope_width = Shape <start = 2> (query_rope)
    rope_shape = Concat <axis = 0> (all_queries, rope_width)
    q_rope = Reshape <allowzero = 1> (query_rope, rope_shape)
    k = Flatten <axis = 3> (key)
    v = Flatten <axis = 3> (value)
    k_rope = Flatten <axis = 3> (key_rope)
    rows, peak, total = glm5.ascend.AttendRows <scale_value: float = @scale_value>
        (q, k, v, q_rope, k_rope, flat_where, flat_used)
    lead = Shape <end = 3> (query)
    out_width = Shape <start = -1> (value)
    out_shape = Concat <axis = 0> (lead, out_width)
    out = Reshape <allowzero = 1> (rows, out_shape)
    by_head = Shape <start = 1, end = 3> (query)
    one_axis = Constant <value_ints = [1]> ()
    lse_shape = Concat <axis = 0> (batch_size, one_axis, by_head)
    softmax_max = Reshape <allowzero = 1> (peak, lse_shape)
    softmax_sum = Reshape <allowzero = 1> (total, lse_shape)
}}
"""

SPARSE_FLASH_ATTENTION_PAGED = f"""
{HEADER}
SparseFlashAttentionPaged <scale_value, sparse_block_size, sparse_mode>
(query, key, value, sparse_indices, query_rope, key_rope, query_ends, key_lengths, block_table)
=> (out, softmax_max, softmax_sum) {{
    zero = Constant <value = int64 {{0}}> ()
    last = Constant <value_ints = [-1]> ()
    request, offset, owned, starts, lengths, most = glm5.ascend.PackedRows (query, query_ends)
    by_request = glm5.ascend.VisibleKeys <sparse_mode: int = @sparse_mode>
        (most, lengths, key_lengths)
    b = Unsqueeze (request, last)
    i = Unsqueeze (offset, last)
    pair = Concat <axis = 1> (b, i)
    seen_by_owner = GatherND (by_request, pair)
    visible = Where (owned, seen_by_owner, zero)
    tokens = glm5.ascend.TokensOfBlocks <sparse_block_size: int = @sparse_block_size>
        (sparse_indices)
    limit = Unsqueeze (visible, last)
    named = GreaterOrEqual (tokens, zero)
    seen = Less (tokens, limit)
    used = And (named, seen)
    position = Where (used, tokens, zero)
    block_size = Shape <start = 1, end = 2> (key)
    page = Div (position, block_size)
    in_page = Mod (position, block_size)
    table = Cast <to = 7> (block_table)
    my_table = Gather <axis = 0> (table, request)
    block = GatherElements <axis = 1> (my_table, page)
    block_start = Mul (block, block_size)
    row = Add (block_start, in_page)
    where = Where (used, row, zero)
    k = Flatten <axis = 3> (key)
    v = Flatten <axis = 3> (value)
    k_rope = Flatten <axis = 3> (key_rope)
    out, peak, total = glm5.ascend.AttendRows <scale_value: float = @scale_value>
        (query, k, v, query_rope, k_rope, where, used)
    front = Constant <value_ints = [0]> ()
    softmax_max = Unsqueeze (peak, front)
    softmax_sum = Unsqueeze (total, front)
}}
"""

FUNCTIONS = (
    CHOSEN_ROWS,
    ATTEND_ROWS,
    TOKENS_OF_BLOCKS,
    SPARSE_FLASH_ATTENTION,
    SPARSE_FLASH_ATTENTION_PAGED,
)


def graph(
    sizes: Sizes,
    dtype: str,
    *,
    paged: bool,
    sparse_mode: int = 3,
    sparse_block_size: int = 1,
    own_value: int = 0,
    scale: float | None = None,
) -> str:
    """Graph with one call of the operator; inputs are named as in torch_npu.

    Args:
        sizes: heads, widths, softmax scale, and how many indices a query has.
        dtype: ONNX name of the dtype of queries and keys.
        paged: TND queries with prefix sums and PA_BSND keys, instead of BSND both.
        sparse_mode: 3 or 0.
        sparse_block_size: tokens per index.
        own_value: width of a separate ``value``; 0 takes the key as value, as MLA does.
        scale: softmax scale, that of ``sizes`` if None.
    """
    heads, width, rope = sizes.heads, sizes.kv_lora, sizes.rope
    scale = sizes.scale if scale is None else scale
    rows = "blocks, block_size" if paged else "batch, keys"
    lead = "tokens" if paged else "batch, queries"
    each = "requests" if paged else "batch"
    lse = f"1, tokens, {heads}" if paged else f"batch, 1, queries, {heads}"
    value = f"{dtype}[{rows}, 1, {own_value}] value," if own_value else ""
    table = f", int32[{each}, pages] block_table" if paged else ""
    return f"""
    sparse_flash_attention (
        {dtype}[{lead}, {heads}, {width}] query,
        {dtype}[{rows}, 1, {width}] key,
        {value}
        int32[{lead}, 1, {sizes.index_topk}] sparse_indices,
        {dtype}[{lead}, {heads}, {rope}] query_rope,
        {dtype}[{rows}, 1, {rope}] key_rope,
        int32[{each}] actual_seq_lengths_query,
        int32[{each}] actual_seq_lengths_kv{table}
    ) => (
        {dtype}[{lead}, {heads}, {own_value or width}] out,
        float[{lse}] softmax_max,
        float[{lse}] softmax_sum
    ) {{
        out, softmax_max, softmax_sum = glm5.ascend.SparseFlashAttention{"Paged" if paged else ""}
            <scale_value = {scale!r}, sparse_block_size = {sparse_block_size},
             sparse_mode = {sparse_mode}>
            (query, key, {"value" if own_value else "key"}, sparse_indices, query_rope, key_rope,
             actual_seq_lengths_query, actual_seq_lengths_kv{", block_table" if paged else ""})
    }}"""
