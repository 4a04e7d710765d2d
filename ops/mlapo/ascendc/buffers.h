// Buffers of an AIV in UB, and their hand-over between the copying pipes and V.
#pragma once

#include "kernel_operator.h"
#include "tiles.h"

namespace mlapo {

using namespace AscendC;

// Inputs pass through two buffers in turn, outputs through two others.
template <class Tiles>
class Buffers {
 public:
  __aicore__ inline void init(TPipe& pipe, int32_t inputs, int32_t outputs) {
    pipe.InitBuffer(all_, Tiles::UB);
    inputs_ = inputs;
    outputs_ = outputs;
  }

  // Two rows of scratch.
  template <class U>
  __aicore__ inline LocalTensor<U> wide(int32_t which) const {
    return at(WIDE + which * Tiles::WIDE, Tiles::WIDE).template ReinterpretCast<U>();
  }
  __aicore__ inline LocalTensor<uint8_t> constants(int32_t byte) const {
    return at(CONSTANTS + byte, Tiles::CONSTANTS - byte);
  }

  // MTE2 may fill the next input.
  __aicore__ inline LocalTensor<uint8_t> open_input() {
    if (filled_ >= 2) WaitFlag<HardEvent::V_MTE2>(filled_ % 2);
    return at(filled_ % 2 * Tiles::INPUT, Tiles::INPUT);
  }
  __aicore__ inline void input_filled() { SetFlag<HardEvent::MTE2_V>(filled_++ % 2); }
  // V may read it.
  __aicore__ inline LocalTensor<uint8_t> take_input() {
    WaitFlag<HardEvent::MTE2_V>(taken_ % 2);
    return at(taken_ % 2 * Tiles::INPUT, Tiles::INPUT);
  }
  __aicore__ inline void input_read() {
    if (taken_ + 2 < inputs_) SetFlag<HardEvent::V_MTE2>(taken_ % 2);
    taken_++;
  }

  // V may write the next output.
  __aicore__ inline LocalTensor<uint8_t> open_output() {
    if (sent_ >= 2) WaitFlag<HardEvent::MTE3_V>(sent_ % 2);
    return at(OUTPUT + sent_ % 2 * Tiles::OUTPUT, Tiles::OUTPUT);
  }
  // MTE3 may copy it out.
  __aicore__ inline void output_written() {
    SetFlag<HardEvent::V_MTE3>(sent_ % 2);
    WaitFlag<HardEvent::V_MTE3>(sent_ % 2);
  }
  __aicore__ inline void output_sent() {
    if (sent_ + 2 < outputs_) SetFlag<HardEvent::MTE3_V>(sent_ % 2);
    sent_++;
  }

 private:
  __aicore__ inline LocalTensor<uint8_t> at(int32_t byte, int32_t bytes) const {
    return all_.template GetWithOffset<uint8_t>(uint32_t(bytes), uint32_t(byte));
  }

  static constexpr int32_t OUTPUT = 2 * Tiles::INPUT, WIDE = OUTPUT + 2 * Tiles::OUTPUT,
                           CONSTANTS = WIDE + 2 * Tiles::WIDE;
  TBuf<TPosition::VECCALC> all_;
  int32_t inputs_ = 0, outputs_ = 0, filled_ = 0, taken_ = 0, sent_ = 0;
};

}  // namespace mlapo
