// The only header of the emulator that kernels include. Written from public descriptions of the
// AscendC basic API; a function that is missing here does not compile.
#pragma once

#include "ascendc/atomic.h"
#include "ascendc/cast.h"
#include "ascendc/compare.h"
#include "ascendc/copy.h"
#include "ascendc/cube_load.h"
#include "ascendc/fixpipe.h"
#include "ascendc/gather.h"
#include "ascendc/mmad.h"
#include "ascendc/queue.h"
#include "ascendc/reduce.h"
#include "ascendc/sort.h"
#include "ascendc/sync.h"
#include "ascendc/system.h"
#include "ascendc/tensor.h"
#include "ascendc/types.h"
#include "ascendc/vector.h"
#include "ascendc/vector_unary.h"
