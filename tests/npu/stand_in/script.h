// What the stand-in is told to be: how many devices of which make, and what each call costs.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

namespace stand_in {

// The work of one call, as far as a cost may depend on it.
struct Work {
  std::string name;
  int64_t elements = 0;  // of the table that is written, else of the result; bytes for a copy between host and device
  int64_t indices = 0;
};

// What a call costs, and whether it waits.
struct Price {
  std::chrono::nanoseconds device{};
  std::chrono::nanoseconds host{};
  bool synchronizes = false;
};

struct Machine {
  uint32_t devices = 1;
  std::string soc = "Ascend910B3";
  uint64_t memory = 64ULL << 30;
};

const Machine& machine();

Price price(const Work& work);

}  // namespace stand_in
