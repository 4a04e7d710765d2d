// Identity of the core, scalar cache, printing, assertions, kernel types.
#pragma once

#include "ascendc/tensor.h"
#include "emu/system.h"

// Parenthesised, since kernels write `if ASCEND_IS_AIC { ... }`.
#define ASCEND_IS_AIC (::emu::is_cube())
#define ASCEND_IS_AIV (!::emu::is_cube())
#define ASCEND_IS_NOT_AIC (!::emu::is_cube())
#define ASCEND_IS_NOT_AIV (::emu::is_cube())
#define KERNEL_TASK_TYPE_DEFAULT(type) ::emu::declare_type(int(type), ::emu::At::current())

namespace AscendC {

inline int64_t GetBlockIdx() { return emu::core().block_idx; }
inline int64_t GetBlockNum() { return emu::block_count(); }
inline int64_t GetSubBlockIdx() { return emu::core().sub; }
inline int64_t GetSubBlockNum() { return emu::sub_count(); }
// AIV per AIC as an AIV sees it, 1 for an AIC.
inline int64_t GetTaskRation() { return emu::is_cube() ? 1 : emu::sub_count(); }

enum class CacheLine : uint64_t { SINGLE_CACHE_LINE = 0, ENTIRE_DATA_CACHE = 1 };
enum class DcciDst : uint64_t { CACHELINE_ALL = 0, CACHELINE_UB, CACHELINE_OUT, CACHELINE_ATOMIC };

// Writes back and drops the line of the tensor's first element, or every line.
template <class T, CacheLine line, DcciDst target = DcciDst::CACHELINE_ALL>
void DataCacheCleanAndInvalid(const GlobalTensor<T>& tensor, emu::At at = emu::At::current()) {
  emu::clean_and_invalidate(tensor.GetPhyAddr(), line == CacheLine::ENTIRE_DATA_CACHE, at);
}

enum class MemDsbT : uint64_t { ALL = 0, DDR, UB, SEQ };
// Scalar accesses take effect in order here, so there is nothing to wait for.
template <MemDsbT kind>
void DataSyncBarrier() {}

// The instruction cache is not modelled.
inline void ICachePreLoad(int64_t) {}

template <class... Args>
void printf(const char* format, Args... args) {
  emu::print(format, args...);
}
template <class... Args>
void PRINTF(const char* format, Args... args) {
  emu::print(format, args...);
}

}  // namespace AscendC

#undef assert
#define assert(condition, ...) \
  ((condition) ? void() : ::emu::fail_assertion(#condition, ::emu::At::current()))
#define ascendc_assert(condition, ...) assert(condition)
