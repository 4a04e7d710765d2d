// What the thread pool did, for test_pool.py.
#include <pthread.h>
#include <sched.h>

#include <atomic>

#include "g5.h"

// visits[i] counts how often index i ran; threads[i] is who ran it.
G5_EXPORT int probe_pieces(int64_t n, int64_t grain, int64_t work, int32_t* visits,
                           int32_t* threads) {
  std::atomic<int> wrong{0};
  g5::parallel_for(n, grain, [&](int64_t begin, int64_t end, int thread) {
    for (int64_t i = begin; i < end; i++) {
      for (volatile int64_t w = 0; w < work; w = w + 1) {
      }
      visits[i]++;
      threads[i] = thread;
      // Inside one of several pieces everything runs in one thread.
      const bool whole = end - begin == n;
      g5::parallel_for(4, 1, [&](int64_t, int64_t, int inner) { wrong += !whole && inner != 0; });
      int32_t* memory = g5::scratch<int32_t>(int(i % 8), size_t(1 + i % 5000));
      if (memory == nullptr || reinterpret_cast<uintptr_t>(memory) % 64 != 0) wrong++;
      if (memory != nullptr) memory[i % 5000] = int32_t(i);
    }
  });
  return wrong;
}

// Processors that the pieces ran on, and how many of them a helper may use.
G5_EXPORT int probe_processors(int64_t n, int32_t* allowed) {
  g5::parallel_for(n, 1, [&](int64_t begin, int64_t, int thread) {
    for (volatile int64_t w = 0; w < 2000000; w = w + 1) {
    }
    cpu_set_t set;
    pthread_getaffinity_np(pthread_self(), sizeof set, &set);
    allowed[begin] = thread == 0 ? 0 : CPU_COUNT(&set);
  });
  return 0;
}
