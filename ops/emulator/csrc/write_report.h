#pragma once

#include <string>

namespace emu {

class Machine;
std::string write_report(Machine& machine);

}  // namespace emu
