// Keeps the device's clock.
#include "clock.h"

#include <algorithm>
#include <thread>

namespace stand_in {
namespace {

// A sleeping thread wakes up late by up to this much; so much of every wait is spun away instead.
constexpr std::chrono::microseconds kLateness{120};

}  // namespace

Time DeviceClock::now() const {
  const std::lock_guard lock(mutex_);
  const Time time = HostClock::now() - behind_;
  return limit_ ? std::min(time, *limit_) : time;
}

void DeviceClock::wait_until(Time time) const {
  // Again and again, since the clock may have stood still during the sleep.
  for (Duration left = time - now(); left.count() > 0; left = time - now()) {
    if (left > kLateness) std::this_thread::sleep_for(left - kLateness);
  }
}

void DeviceClock::compute_until(Time done, const std::function<void()>& compute) {
  {
    const std::lock_guard lock(mutex_);
    limit_ = done;
  }
  compute();
  const std::lock_guard lock(mutex_);
  limit_.reset();
  behind_ += std::max(Duration{}, HostClock::now() - behind_ - done);
}

void spend(Duration time) {
  if (time.count() > 0) DeviceClock{}.wait_until(HostClock::now() + time);
}

}  // namespace stand_in
