// The simulated device: streams that compute at once, and remember when the device would have finished.
//
// Work is carried out in the order in which it is submitted, on the thread that submits it. Each stream keeps the time
// at which the device would be through with it; whoever synchronizes waits, really, until that time.
#pragma once

#include <acl/acl.h>

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "clock.h"

namespace stand_in {

// One thing for a stream to do. `run` is told when the device would be through with it.
struct Task {
  std::function<void(Time done)> run;
  Duration cost{};
};

// What a capture collects, and what a replay carries out.
struct Graph : std::enable_shared_from_this<Graph> {
  uint32_t id = 0;
  std::vector<Task> tasks;
  bool invalid = false;
};

struct Event {
  Time at{};
  // The capture that it was recorded in, if it was.
  std::weak_ptr<Graph> capture;
};

struct Stream {
  int32_t id = 0;
  Time ready{};
  std::shared_ptr<Graph> capture;
};

class Device {
 public:
  static Device& instance();

  Stream* create_stream();
  void destroy_stream(Stream* stream);
  // The stream behind a handle; null means the default one.
  Stream* stream(aclrtStream handle);

  void submit(Stream* stream, Task task);
  void record(Stream* stream, const std::shared_ptr<Event>& event);
  void wait_for(Stream* stream, const std::shared_ptr<Event>& event);
  void replay(Stream* stream, const Graph& graph, Duration cost);
  bool idle(const Stream& stream) const;
  bool reached(const Event& event) const;
  Duration between(const Event& begin, const Event& end) const;

  // Each waits, and returns an error where a capture forbids waiting, or where the device has failed.
  aclError synchronize(Stream* stream);
  aclError synchronize(const Event& event);
  aclError synchronize_all();
  // As synchronize_all, once everything that has been planned is launched as well: torch_npu does the two on different
  // threads.
  aclError drain();
  void planned();
  void launched();

  aclError begin_capture(Stream* stream);
  aclError end_capture(Stream* stream, std::shared_ptr<Graph>& graph);
  std::shared_ptr<Graph> capture_of(const Stream& stream) const;
  // How captures look upon calls of this thread that wait; returns the mode before.
  aclmdlRICaptureMode exchange_mode(aclmdlRICaptureMode mode);

  // Makes every synchronization from now on fail, as an exception on the device does.
  void fail(const std::string& reason);

 private:
  Device();
  aclError wait(const char* call, Time until);
  bool refuse_in_capture(const char* call);
  Time all_ready() const;
  void run(Stream* stream, const Task& task);

  DeviceClock clock_;
  // The device does one thing at a time. Recursive, since an operator that fails is running.
  mutable std::recursive_mutex mutex_;
  std::vector<std::unique_ptr<Stream>> streams_;
  Stream* default_stream_ = nullptr;
  int32_t next_stream_ = 0;
  uint32_t next_graph_ = 1;
  int captures_ = 0;
  bool failed_ = false;

  std::mutex plans_mutex_;
  std::condition_variable plans_done_;
  int plans_ = 0;
};

// Keeps the message for aclGetRecentErrMsg, and returns `error`.
aclError refuse(aclError error, const std::string& message);

}  // namespace stand_in
