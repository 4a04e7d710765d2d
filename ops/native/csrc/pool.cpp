// Threads and scratch memory, one library for all operators and instruction sets. Who waits looks
// around for some microseconds, as the next job of an operator or the end of this one is often that
// near, and then sleeps: spinning on would take the processor from torch's threads and from other
// processes.
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <new>
#include <thread>
#include <vector>

#define G5_EXPORT extern "C" __attribute__((visibility("default")))

namespace {

using Task = void (*)(void*, int64_t, int);

struct Job {
  Task task = nullptr;
  void* context = nullptr;
  int64_t tasks = 0;
  std::atomic<int64_t> next{0};
};

struct Pool {
  std::mutex use;  // held by the thread whose job runs
  std::mutex mutex;  // guards everything below; places, active and job.next are also read without
  std::condition_variable wake, done;
  std::vector<std::thread> workers;
  std::atomic<int> places{0};  // workers that may still join the current job
  std::atomic<int> active{0};  // workers that are in it
  int beside = -1;  // processor of the caller when the workers were placed
  Job job;
};

std::atomic<int> thread_count{1};
thread_local bool inside = false;

// Never destroyed: workers may still sleep in it when the process ends.
std::atomic<Pool*> current{nullptr};

// A child process has none of the threads.
void forget_after_fork() { current.store(nullptr); }

Pool* pool() {
  static std::mutex creation;
  Pool* p = current.load();
  if (p != nullptr) return p;
  std::lock_guard<std::mutex> lock(creation);
  static const int registered = pthread_atfork(nullptr, nullptr, forget_after_fork);
  (void)registered;
  p = current.load();
  if (p == nullptr) {
    p = new (std::nothrow) Pool;
    current.store(p);
  }
  return p;
}

// Waits until `happened`, but for about SPIN at most: a sleeping thread takes longer than that to
// wake up.
constexpr std::chrono::microseconds SPIN{30};

template <class Fn>
void look_around(const Fn& happened) {
  const auto end = std::chrono::steady_clock::now() + SPIN;
  while (!happened()) {
    for (int i = 0; i < 16; i++) {
#if defined(__x86_64__)
      __builtin_ia32_pause();
#elif defined(__aarch64__)
      asm volatile("yield");
#endif
    }
    if (std::chrono::steady_clock::now() >= end) return;
  }
}

void work(Job& job, int thread) {
  inside = true;
  for (int64_t i; (i = job.next.fetch_add(1)) < job.tasks;) job.task(job.context, i, thread);
  inside = false;
}

void serve(Pool* p) {
  sigset_t all;
  sigfillset(&all);
  pthread_sigmask(SIG_BLOCK, &all, nullptr);
  std::unique_lock<std::mutex> lock(p->mutex);
  for (;;) {
    p->wake.wait(lock, [&] { return p->places > 0; });
    const int thread = p->places--;
    p->active++;
    lock.unlock();
    work(p->job, thread);
    lock.lock();
    if (--p->active == 0) p->done.notify_one();
    lock.unlock();
    look_around([p] { return p->places > 0; });
    lock.lock();
  }
}

// Each worker gets a processor of its own, and none gets the caller's.
void place(Pool* p) {
#ifdef __linux__
  const int here = sched_getcpu();
  cpu_set_t allowed;
  if (here == p->beside || sched_getaffinity(0, sizeof allowed, &allowed) != 0) return;
  std::vector<int> others;
  for (int i = 1; i < CPU_SETSIZE; i++) {
    const int cpu = (here + i) % CPU_SETSIZE;
    if (CPU_ISSET(cpu, &allowed)) others.push_back(cpu);
  }
  if (others.empty()) return;
  for (size_t i = 0; i < p->workers.size(); i++) {
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(others[i % others.size()], &one);
    pthread_setaffinity_np(p->workers[i].native_handle(), sizeof one, &one);
  }
  p->beside = here;
#endif
}

// Starts missing workers; with fewer than wanted the job still runs, only slower.
void prepare(Pool* p, int workers) {
  try {
    while (int(p->workers.size()) < workers) {
      p->workers.emplace_back(serve, p);
      p->beside = -1;
    }
    place(p);
  } catch (...) {
  }
}

struct Scratch {
  void* memory[8] = {};
  size_t size[8] = {};
  ~Scratch() {
    for (void* m : memory) free(m);
  }
};

}  // namespace

G5_EXPORT int g5_threads() { return inside ? 1 : thread_count.load(std::memory_order_relaxed); }

G5_EXPORT void g5_set_threads(int count) { thread_count.store(count < 1 ? 1 : count); }

G5_EXPORT void g5_run(int64_t tasks, Task task, void* context) {
  const int threads = int(tasks < g5_threads() ? tasks : g5_threads());
  Pool* p = threads > 1 ? pool() : nullptr;
  if (p == nullptr || !p->use.try_lock()) {
    const bool before = inside;
    inside = true;
    for (int64_t i = 0; i < tasks; i++) task(context, i, 0);
    inside = before;
    return;
  }
  std::unique_lock<std::mutex> lock(p->mutex);
  prepare(p, threads - 1);
  p->job.task = task;
  p->job.context = context;
  p->job.tasks = tasks;
  p->job.next.store(0);
  p->places = threads - 1;
  lock.unlock();
  p->wake.notify_all();
  work(p->job, 0);
  lock.lock();
  p->places = 0;  // who has not come yet need not come
  lock.unlock();
  look_around([p] { return p->active == 0; });
  lock.lock();
  p->done.wait(lock, [&] { return p->active == 0; });
  lock.unlock();
  p->use.unlock();
}

G5_EXPORT void* g5_scratch(int slot, size_t bytes) {
  static thread_local Scratch scratch;
  if (bytes > scratch.size[slot]) {
    free(scratch.memory[slot]);
    scratch.size[slot] = 0;
    // A quarter more than asked for, since lengths grow token by token.
    const size_t size = (bytes + bytes / 4 + 4095) / 4096 * 4096;
    scratch.memory[slot] = aligned_alloc(4096, size);
    if (scratch.memory[slot] != nullptr) scratch.size[slot] = size;
  }
  return scratch.memory[slot];
}
