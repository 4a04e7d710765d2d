// What a pipe has completed, handed to other pipes.
#pragma once

#include "machine.h"

namespace emu {

Snapshot completed(CoreState& core, Pipe pipe);
void join(CoreState& core, Pipe pipe, const Snapshot& done, Delay delay);

}  // namespace emu
