#include "child.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#ifdef __linux__
#include <sys/prctl.h>
#endif
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include <mutex>

#include "json.h"
#include "machine.h"
#include "write_report.h"

namespace emu {

namespace {

constexpr double GRACE = 2;  // seconds for a report to be written after the time limit

Machine* watched = nullptr;
int report_to = -1;

std::mutex guard;   // held while `running` changes or its process gets a signal
pid_t running = 0;  // the child of the launch under way

// The child ends with its parent, also where the parent is killed.
void end_with(pid_t parent) {
#ifdef __linux__
  prctl(PR_SET_PDEATHSIG, SIGKILL);
#endif
  if (getppid() != parent) _exit(1);
}

int wait_for(pid_t pid) {
  siginfo_t ended;
  while (waitid(P_PID, id_t(pid), &ended, WEXITED | WNOWAIT) < 0 && errno == EINTR) {
  }
  // Only now may another process get its number.
  const std::lock_guard lock(guard);
  running = 0;
  int status = 0;
  while (waitpid(pid, &status, 0) < 0 && errno == EINTR) {
  }
  return status;
}

void send(const std::string& text) {
  size_t done = 0;
  while (done < text.size()) {
    const ssize_t n = write(report_to, text.data() + done, text.size() - done);
    if (n < 0 && errno != EINTR) return;
    if (n > 0) done += size_t(n);
  }
}

// Runs on a stack of its own. It allocates, which can fail to end where the signal came inside
// malloc; the parent waits for a limited time only.
void on_signal(int signal, siginfo_t* info, void*) {
  if (watched == nullptr || current == nullptr) _exit(1);
  CoreState& core = here();
  std::string text = "the kernel does not end; this was its last statement of the emulator";
  if (signal != SIGALRM) {
    text = std::string(strsignal(signal)) + " after this statement";
    for (CoreState& each : watched->cores) {
      if (signal == SIGSEGV && each.fiber.overflowed(info->si_addr)) text = "stack overflow";
    }
  }
  watched->find(signal == SIGALRM ? Class::TIMEOUT : Class::CRASH, core, -1, core.last_site, text);
  send(write_report(*watched));
  _exit(0);
}

[[noreturn]] void child(const std::function<std::string()>& work, double timeout) {
  static std::byte stack[64 * 1024];
  const stack_t other{.ss_sp = stack, .ss_flags = 0, .ss_size = sizeof stack};
  sigaltstack(&other, nullptr);
  struct sigaction action = {};
  action.sa_sigaction = on_signal;
  action.sa_flags = SA_SIGINFO | SA_ONSTACK;
  for (const int signal : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT, SIGALRM}) {
    sigaction(signal, &action, nullptr);
  }
  signal(SIGINT, SIG_DFL);
  itimerval limit = {};
  limit.it_value.tv_sec = time_t(timeout);
  limit.it_value.tv_usec = suseconds_t((timeout - double(time_t(timeout))) * 1e6) + 1;
  setitimer(ITIMER_REAL, &limit, nullptr);
  send(work());
  _exit(0);
}

std::string failed(Class what, const std::string& text) {
  Json json;
  json.open('{').key("findings").open('[').open('{').key("kind").string(name(what));
  json.key("text").string(text).key("core").string("").key("pipe").string("");
  json.key("site").integer(0).key("count").integer(1).close('}').close(']');
  json.close('}');
  return json.text;
}

}  // namespace

void watch(Machine* machine) { watched = machine; }

void stop_child() {
  const std::lock_guard lock(guard);
  if (running != 0) kill(running, SIGKILL);
}

std::string in_child(const std::function<std::string()>& work, double timeout) {
  int ends[2];
  if (pipe(ends) != 0) return failed(Class::CRASH, std::string("pipe: ") + strerror(errno));
  const pid_t parent = getpid();
  const pid_t pid = fork();
  if (pid < 0) {
    close(ends[0]);
    close(ends[1]);
    return failed(Class::CRASH, std::string("fork: ") + strerror(errno));
  }
  if (pid == 0) {
    end_with(parent);
    close(ends[0]);
    report_to = ends[1];
    child(work, timeout);
  }
  {
    const std::lock_guard lock(guard);
    running = pid;
  }
  close(ends[1]);
  std::string report;
  const double until = seconds() + timeout + GRACE;
  bool late = false;
  for (char part[65536];;) {
    pollfd wait{.fd = ends[0], .events = POLLIN, .revents = 0};
    const double left = until - seconds();
    const int ready = poll(&wait, 1, left > 0 ? int(left * 1000) + 1 : 0);
    if (ready == 0) late = true;
    if (ready == 0 || (ready < 0 && errno != EINTR)) break;
    if (ready < 0) continue;
    const ssize_t n = read(ends[0], part, sizeof part);
    if (n == 0 || (n < 0 && errno != EINTR)) break;
    if (n > 0) report.append(part, size_t(n));
  }
  close(ends[0]);
  if (late) kill(pid, SIGKILL);
  const int status = wait_for(pid);
  if (late) return failed(Class::TIMEOUT, "the kernel does not end");
  if (WIFSIGNALED(status)) {
    return failed(Class::CRASH, std::string("the launch ended by ") + strsignal(WTERMSIG(status)));
  }
  return report.empty() ? failed(Class::CRASH, "the launch ended without a report") : report;
}

}  // namespace emu
