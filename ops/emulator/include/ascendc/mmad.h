// Mmad: C = (0 | C | bias) + A * B.
//
// A in L0A as ZZ, B in L0B as ZN, C in L0C as [n / 16][align16(m)][16]. int8_t and int4b_t give
// int32_t; half, bfloat16_t and float give float. m = 1 reads A as k plain elements (GEMV) and
// leaves C as a matrix of 16 rows. Sums add their products in the order of k, floats in float; the
// hardware's order is not published. Elements beyond m, n and k are not read; rows and columns of
// C's last fractals beyond m and n are undefined, NaN or 0xA5 here. m, n or k = 0: nothing happens.
//
// A Mmad follows an earlier one on the same L0C without PipeBarrier<PIPE_M> only where
// (m / 16) * (n / 16) >= 10, both rounded up.
#pragma once

#include "ascendc/tensor.h"
#include "emu/cube.h"

namespace AscendC {

struct MmadParams {
  uint16_t m = 0, n = 0, k = 0;
  bool isBias = false;
  int32_t fmOffset = 0;
  bool enSsparse = false, enWinogradA = false, enWinogradB = false;
  int8_t unitFlag = 0;           // 0, 2: keep, 3: flip; emu/cube.h has the protocol
  bool kDirectionAlign = false;  // float: rows of fractals in L0A cover a multiple of 16 of k
  bool cmatrixSource = false;    // true: C starts from the bias table
  bool cmatrixInitVal = true;    // true: C starts from 0

  MmadParams() = default;
  MmadParams(uint16_t m_, uint16_t n_, uint16_t k_, uint8_t unit_flag, bool source, bool init)
      : m(m_),
        n(n_),
        k(k_),
        unitFlag(int8_t(unit_flag)),
        cmatrixSource(source),
        cmatrixInitVal(init) {}
  MmadParams(uint16_t m_, uint16_t n_, uint16_t k_, bool bias, int32_t offset, bool sparse,
             bool winograd_a, bool winograd_b)
      : m(m_),
        n(n_),
        k(k_),
        isBias(bias),
        fmOffset(offset),
        enSsparse(sparse),
        enWinogradA(winograd_a),
        enWinogradB(winograd_b) {}
};

template <class T, class U, class S>
emu::Mmad mmad_call(const MmadParams& params) {
  return {emu::number_of<T>(),
          emu::number_of<U>(),
          emu::number_of<S>(),
          params.m,
          params.n,
          params.k,
          params.cmatrixInitVal,
          params.cmatrixSource,
          params.kDirectionAlign,
          params.unitFlag,
          !params.isBias && params.fmOffset == 0 && !params.enSsparse && !params.enWinogradA &&
              !params.enWinogradB};
}

template <class T, class U, class S>
void Mmad(const LocalTensor<T>& c, const LocalTensor<U>& a, const LocalTensor<S>& b,
          const MmadParams& params, emu::At at = emu::At::current()) {
  emu::mmad(c.range(0, 0), a.range(0, 0), b.range(0, 0), nullptr, emu::Number::None,
            mmad_call<T, U, S>(params), at);
}

// With n biases of C's type in the bias table (C2); cmatrixInitVal must be false.
template <class T, class U, class S, class V>
void Mmad(const LocalTensor<T>& c, const LocalTensor<U>& a, const LocalTensor<S>& b,
          const LocalTensor<V>& bias, const MmadParams& params, emu::At at = emu::At::current()) {
  const emu::Range table = bias.range(0, 0);
  emu::mmad(c.range(0, 0), a.range(0, 0), b.range(0, 0), &table, emu::number_of<V>(),
            mmad_call<T, U, S>(params), at);
}

}  // namespace AscendC
