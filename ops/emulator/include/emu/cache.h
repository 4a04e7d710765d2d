// Scalar access to GM through the core's data cache, which DMA does not see.
#pragma once

#include "emu/core.h"
#include "emu/types.h"

namespace emu {

void scalar_load(const void* gm, void* value, uint32_t bytes, At at);
void scalar_store(void* gm, const void* value, uint32_t bytes, At at);
void clean_and_invalidate(const void* gm, bool whole, At at);

}  // namespace emu
