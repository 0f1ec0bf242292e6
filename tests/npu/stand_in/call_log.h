// The record of what was asked of CANN.
#pragma once

#include <string>

namespace stand_in {

// Appends one line: a call's name, for a copy with its direction.
void log_call(const std::string& line);

}  // namespace stand_in

// Writes a line of the caller's own between those of the calls. That it exists tells the stand-in from CANN.
extern "C" void cann_stand_in_mark(const char* line);
