// The only header of the emulator that kernels include. Written from public descriptions of the
// AscendC basic API; a function that is missing here does not compile.
#pragma once

#include "ascendc/atomic.h"
#include "ascendc/copy.h"
#include "ascendc/cube_load.h"
#include "ascendc/fixpipe.h"
#include "ascendc/mmad.h"
#include "ascendc/queue.h"
#include "ascendc/sync.h"
#include "ascendc/system.h"
#include "ascendc/tensor.h"
#include "ascendc/types.h"
