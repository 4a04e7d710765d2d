// A launch in a process of its own, which may crash or never end.
#pragma once

#include <functional>
#include <string>

namespace emu {

class Machine;

// The machine whose report a signal handler of the child completes; null when there is none.
void watch(Machine* machine);
// What `work` returns in a child process; a report with a finding CRASH or TIMEOUT where it does not.
std::string in_child(const std::function<std::string()>& work, double timeout);
// Ends the child that `in_child` waits for in another thread, if there is one yet.
void stop_child();

}  // namespace emu
