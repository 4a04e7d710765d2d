// The kernel's arguments in GM, and the flags between cores.
#pragma once

#include "kernel_operator.h"
#include "tiling.h"

namespace mlapo {

// T: dtype of activations; A, B: elements of the first and the second weight.
struct Arguments {
  GM_ADDR x;                // [tokens, hidden] T or int8
  GM_ADDR x_scale;          // float [tokens] of int8 x
  GM_ADDR x_point;          // float [2]: scale and offset of static x
  GM_ADDR latent_point;     // float [2]: those of the static q latent
  GM_ADDR down;             // NZ A [q_lora | kv_lora | rope rows, hidden]
  GM_ADDR down_scale;       // float [q_lora + kv_lora + rope]
  GM_ADDR down_bias;        // int32, likewise
  GM_ADDR up;               // NZ B [heads (nope + rope), q_lora]
  GM_ADDR up_scale;         // float [heads (nope + rope)]
  GM_ADDR up_bias;          // int32, likewise
  GM_ADDR absorb;           // NZ T [heads][kv_lora, nope]
  GM_ADDR gamma_q;          // T [q_lora]
  GM_ADDR gamma_kv;         // T [kv_lora]
  GM_ADDR cos;              // float [tokens, rope / 2]
  GM_ADDR sin;              // likewise
  GM_ADDR slots;            // int32 [tokens]
  GM_ADDR kv_cache;         // T, or int8 with packed rows; rows kv_row apart
  GM_ADDR kr_cache;         // T, rows kr_row apart
  GM_ADDR query;            // T or int8 [tokens, heads, kv_lora]
  GM_ADDR query_scale;      // float [tokens, heads] of an int8 query
  GM_ADDR query_rope;       // T [tokens, heads, rope]
  GM_ADDR latent;           // T [tokens, q_lora]
  GM_ADDR latent_codes;     // int8 [tokens, q_lora]
  GM_ADDR latent_scale;     // float [tokens]
  GM_ADDR workspace;
};

// "_ALL": between all AIVs; the others between an AIC and its two AIVs.
enum CrossFlag : uint16_t {
  X_ALL = 0,      // codes of x are written
  X_READY = 1,    //   AIV to AIC
  DOWN_READY = 2, // sums of the first product are written; AIC to AIV
  DOWN_ALL = 3,
  LATENT_ALL = 4,  // the q latent is written
  LATENT_READY = 5,
  UP_READY = 6,  // sums of the second product
  UP_ALL = 7,
  NOPE_ALL = 8,  // unrotated queries
  NOPE_READY = 9,
  QUERY_READY = 10,  // queries to be quantised; then NOPE_ALL once more
};

}  // namespace mlapo
