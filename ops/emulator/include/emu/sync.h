// Synchronisation of the running core.
#pragma once

#include "emu/core.h"
#include "emu/types.h"

namespace emu {

inline constexpr int ALL_PIPES = PIPES;  // of barrier()

void set_flag(Pipe from, Pipe to, int id, At at);
void wait_flag(Pipe from, Pipe to, int id, At at);
void barrier(int pipe, At at);
int alloc_event(Pipe from, Pipe to, At at);  // stays taken until release_event
int fetch_event(Pipe from, Pipe to, At at);  // the next free one; it stays free
void release_event(Pipe from, Pipe to, int id, At at);
// `pipe` is a Pipe, or PIPES for PIPE_ALL.
void cross_set(int mode, int pipe, int id, At at);
void cross_wait(int id, At at);
void sync_all(bool vector_only, At at);

}  // namespace emu
