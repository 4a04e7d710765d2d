// Host side of MLA pre-processing: sizes, plan, outputs, workspace, launch.
#pragma once

#include <tuple>

#include "host.h"
#include "launch.h"

namespace mlapo {

using Six = std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor>;

// Bytes: codes, rotated dims of 16 bits, F32 scales.
constexpr int64_t PACKED_ROW = PACK_LATENT + 2 * PACK_ROPE + 4 * PACK_LATENT / PACK_TILE;

struct Kernel {
  decltype(&launch_mlapo_bf16) launch;
  int32_t (*plan)(Tiling*);
};

// By dtype of activations and by which weights are int8.
inline Kernel kernel(at::ScalarType dtype, bool down, bool up) {
  TORCH_CHECK(up || !down, "the second weight must be int8 where the first one is");
  if (dtype == at::kBFloat16) {
    if (down) return {launch_mlapo_bf16_int8, mlapo_bf16_int8_plan};
    return up ? Kernel{launch_mlapo_bf16_up, mlapo_bf16_up_plan}
              : Kernel{launch_mlapo_bf16, mlapo_bf16_plan};
  }
  TORCH_CHECK(dtype == at::kHalf, "activations must be bfloat16 or float16, not ", dtype);
  if (down) return {launch_mlapo_f16_int8, mlapo_f16_int8_plan};
  return up ? Kernel{launch_mlapo_f16_up, mlapo_f16_up_plan}
            : Kernel{launch_mlapo_f16, mlapo_f16_plan};
}

// Elements from one slot to the next of cache [blocks, block_size, width].
inline int64_t slot_distance(const char* name, const at::Tensor& cache, at::ScalarType dtype) {
  TORCH_CHECK(cache.dim() == 3 && cache.scalar_type() == dtype && cache.stride(2) == 1 &&
                  cache.stride(0) == cache.stride(1) * cache.size(1),
              name, " must be ", dtype, " [blocks, block_size, width], rows at one distance");
  return cache.stride(1);
}

inline const char* refused(int32_t code) {
  switch (code) {
    case TOKENS: return "its number of tokens";
    case HIDDEN: return "its hidden size";
    case Q_LORA: return "its q_lora size";
    case KV_LORA: return "its kv_lora size";
    case HEAD: return "its nope and rope sizes";
    case COLUMNS: return "its columns of the first weight";
    case HEADS: return "its columns of the second weight";
    default: return "these sizes";
  }
}

// (query, query_scale, query_rope, latent, latent_codes, latent_scale): see binding.cpp.
inline Six preprocess(const at::Tensor& x, const glm5::Optional& x_scale,
                       const glm5::Optional& x_point, const glm5::Optional& latent_point,
                       const at::Tensor& down, const glm5::Optional& down_scale,
                       const glm5::Optional& down_bias, const at::Tensor& up,
                       const glm5::Optional& up_scale, const glm5::Optional& up_bias,
                       const at::Tensor& absorb, const at::Tensor& gamma_q,
                       const at::Tensor& gamma_kv, const at::Tensor& cos, const at::Tensor& sin,
                       const at::Tensor& slots, at::Tensor& kv_cache,
                       const glm5::Optional& kr_cache, double eps_q, double eps_kv,
                       bool keep_latent, bool int8_query) {
  const auto dtype = gamma_q.scalar_type();
  const bool down8 = down.scalar_type() == at::kChar, up8 = up.scalar_type() == at::kChar;
  const Kernel run = kernel(dtype, down8, up8);
  TORCH_CHECK(x.dim() == 2 && absorb.dim() == 4 && cos.dim() == 2,
              "x must be [T, hidden], absorb [heads, nope / 16, kv_lora, 16], cos [T, rope / 2]");
  Tiling t{};
  t.tokens = int32_t(x.size(0));
  t.hidden = int32_t(x.size(1));
  t.q_lora = int32_t(gamma_q.size(0));
  t.kv_lora = int32_t(gamma_kv.size(0));
  t.heads = int32_t(absorb.size(0));
  t.nope = int32_t(absorb.size(1) * absorb.size(3));
  t.rope = int32_t(2 * cos.size(1));
  t.cores = glm5::cube_cores();
  t.quantise_x = down8 && x.scalar_type() != at::kChar;
  t.x_static = x_point.has_value();
  t.latent_static = latent_point.has_value();
  t.keep_latent = keep_latent;
  t.eps_q = float(eps_q);
  t.eps_kv = float(eps_kv);
  t.packed = !kr_cache.has_value();
  t.int8_query = int8_query;
  t.kv_row = slot_distance("kv_cache", kv_cache, t.packed ? at::kChar : dtype);
  t.kr_row = t.packed ? 1 : slot_distance("kr_cache", *kr_cache, dtype);

  const int64_t tokens = t.tokens, columns = t.q_lora + t.kv_lora + t.rope,
                wide = int64_t(t.heads) * (t.nope + t.rope), c0_down = 32 / down.element_size(),
                c0_up = 32 / up.element_size();
  TORCH_CHECK(x.scalar_type() == dtype || down8, "x must be ", dtype);
  glm5::check("x", x, x.scalar_type() == at::kChar ? at::kChar : dtype, {tokens, t.hidden}, x);
  TORCH_CHECK((x.scalar_type() == at::kChar) == x_scale.has_value() || x_point.has_value(),
              "int8 x goes with x_scale");
  glm5::check("x_scale", x_scale, at::kFloat, {tokens, 1}, x);
  glm5::check("x_point", x_point, at::kFloat, {2}, x);
  glm5::check("latent_point", latent_point, at::kFloat, {2}, x);
  glm5::check("down", down, down8 ? at::kChar : dtype, {t.hidden / c0_down, columns, c0_down}, x);
  glm5::check("down_scale", down_scale, at::kFloat, {columns}, x);
  glm5::check("down_bias", down_bias, at::kInt, {columns}, x);
  glm5::check("up", up, up8 ? at::kChar : dtype, {t.q_lora / c0_up, wide, c0_up}, x);
  glm5::check("up_scale", up_scale, at::kFloat, {wide}, x);
  glm5::check("up_bias", up_bias, at::kInt, {wide}, x);
  TORCH_CHECK(down8 == down_scale.has_value() && up8 == up_scale.has_value(),
              "scales go with int8 weights");
  TORCH_CHECK(t.x_static == down_bias.has_value() && t.latent_static == up_bias.has_value(),
              "biases go with static scales");
  glm5::check("absorb", absorb, dtype, {t.heads, t.nope / 16, t.kv_lora, 16}, x);
  glm5::check("gamma_q", gamma_q, dtype, {t.q_lora}, x);
  glm5::check("gamma_kv", gamma_kv, dtype, {t.kv_lora}, x);
  glm5::check("cos", cos, at::kFloat, {tokens, t.rope / 2}, x);
  glm5::check("sin", sin, at::kFloat, {tokens, t.rope / 2}, x);
  glm5::check("slots", slots, at::kInt, {tokens}, x);
  const bool fit = t.packed ? kv_cache.size(2) == PACKED_ROW && t.kv_lora == PACK_LATENT &&
                                  t.rope == PACK_ROPE
                            : kv_cache.size(2) == t.kv_lora && kr_cache->size(2) == t.rope;
  TORCH_CHECK(fit, "the caches' rows must be of kv_lora and rope elements, or packed");
  const int32_t code = run.plan(&t);
  TORCH_CHECK(code == TAKEN, "the AscendC kernel of mlapo does not take ", refused(code));

  const auto options = x.options();
  const bool keep_float = !up8 || keep_latent;
  at::Tensor query =
      at::empty({tokens, t.heads, t.kv_lora}, options.dtype(int8_query ? at::kChar : dtype));
  at::Tensor query_scale = at::empty({tokens, t.heads, 1}, options.dtype(at::kFloat));
  at::Tensor query_rope = at::empty({tokens, t.heads, t.rope}, options.dtype(dtype));
  at::Tensor latent = at::empty({tokens, keep_float ? t.q_lora : 0}, options.dtype(dtype));
  at::Tensor codes = at::empty({tokens, up8 ? t.q_lora : 0}, options.dtype(at::kChar));
  at::Tensor scale = at::empty({tokens, 1}, options.dtype(at::kFloat));
  at::Tensor room = glm5::workspace(t.workspace, x);
  using glm5::address;
  const Addresses addresses{
      address(x),          address(x_scale),    address(x_point),   address(latent_point),
      address(down),       address(down_scale), address(down_bias), address(up),
      address(up_scale),   address(up_bias),    address(absorb),    address(gamma_q),
      address(gamma_kv),   address(cos),        address(sin),       address(slots),
      address(kv_cache),   address(kr_cache),   address(query),     address(query_scale),
      address(query_rope), address(latent),     address(codes),     address(scale),
      address(room)};
  std::vector<at::Tensor> keep{x,   down,  up,       absorb, gamma_q, gamma_kv, cos,
                               sin, slots, kv_cache, room,   scale,   codes,    query_scale};
  for (const auto& each :
       {x_scale, x_point, latent_point, down_scale, down_bias, up_scale, up_bias, kr_cache})
    if (each.has_value()) keep.push_back(*each);
  glm5::enqueue("glm5_mlapo", std::move(keep), [=](void* stream) {
    run.launch(uint32_t(t.cores), stream, addresses, t);
  });
  return {query, query_scale, query_rope, latent, codes, scale};
}

}  // namespace mlapo
