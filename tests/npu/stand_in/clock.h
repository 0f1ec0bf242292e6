// The device's clock: the host's, except that it stands still while the host computes for longer than the device would.
//
// The stand-in carries out an operator on the host, which for a large table takes longer than the script says that the
// device takes. That time is left out, so that events show what the script says.
#pragma once

#include <chrono>
#include <functional>
#include <mutex>
#include <optional>

namespace stand_in {

using HostClock = std::chrono::steady_clock;
using Time = HostClock::time_point;
using Duration = std::chrono::nanoseconds;

class DeviceClock {
 public:
  Time now() const;
  // Waits, in real time, until the clock shows `time`.
  void wait_until(Time time) const;
  // Runs `compute`, which the device would have done by `done`: the clock does not pass that meanwhile.
  void compute_until(Time done, const std::function<void()>& compute);

 private:
  mutable std::mutex mutex_;
  Duration behind_{};
  std::optional<Time> limit_;
};

// Occupies the calling thread for this long.
void spend(Duration time);

}  // namespace stand_in
