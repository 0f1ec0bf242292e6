// The simulated device's streams and captures.
#include "device.h"

#include <algorithm>
#include <cstdio>
#include <utility>

namespace stand_in {
namespace {

// How long a planned operator may take to be launched. torch_npu's queue thread needs microseconds.
constexpr std::chrono::milliseconds kLaunchLimit{500};

thread_local aclmdlRICaptureMode thread_mode = ACL_MODEL_RI_CAPTURE_MODE_GLOBAL;

}  // namespace

Device& Device::instance() {
  // Never destroyed: torch_npu's threads outlive static objects.
  static Device* const device = new Device;
  return *device;
}

Device::Device() { default_stream_ = create_stream(); }

Stream* Device::create_stream() {
  const std::lock_guard lock(mutex_);
  streams_.push_back(std::make_unique<Stream>());
  streams_.back()->id = next_stream_++;
  return streams_.back().get();
}

void Device::destroy_stream(Stream* stream) {
  const std::lock_guard lock(mutex_);
  streams_.erase(std::remove_if(streams_.begin(), streams_.end(), [&](const auto& one) { return one.get() == stream; }),
                 streams_.end());
}

Stream* Device::stream(aclrtStream handle) {
  return handle == nullptr ? default_stream_ : static_cast<Stream*>(handle);
}

void Device::run(Stream* stream, const Task& task) {
  stream->ready = std::max(clock_.now(), stream->ready) + task.cost;
  clock_.compute_until(stream->ready, [&] { task.run(stream->ready); });
}

void Device::submit(Stream* stream, Task task) {
  const std::lock_guard lock(mutex_);
  if (stream->capture) {
    stream->capture->tasks.push_back(std::move(task));
  } else {
    run(stream, task);
  }
}

void Device::replay(Stream* stream, const Graph& graph, Duration cost) {
  const std::lock_guard lock(mutex_);
  stream->ready = std::max(clock_.now(), stream->ready) + cost;
  for (const Task& task : graph.tasks) run(stream, task);
}

void Device::record(Stream* stream, const std::shared_ptr<Event>& event) {
  const std::lock_guard lock(mutex_);
  event->capture = stream->capture;
  submit(stream, {[event](Time done) { event->at = done; }, {}});
}

void Device::wait_for(Stream* stream, const std::shared_ptr<Event>& event) {
  const std::lock_guard lock(mutex_);
  if (const auto capture = event->capture.lock(); capture && !stream->capture) {
    // Waiting for captured work draws a stream into the capture. Its tasks run on one stream then, in order.
    stream->capture = capture;
  } else if (!stream->capture) {
    stream->ready = std::max(stream->ready, event->at);
  }
}

bool Device::idle(const Stream& stream) const {
  const std::lock_guard lock(mutex_);
  return clock_.now() >= stream.ready;
}

bool Device::reached(const Event& event) const {
  const std::lock_guard lock(mutex_);
  return clock_.now() >= event.at;
}

Duration Device::between(const Event& begin, const Event& end) const {
  const std::lock_guard lock(mutex_);
  return end.at - begin.at;
}

bool Device::refuse_in_capture(const char* call) {
  if (captures_ == 0 || thread_mode == ACL_MODEL_RI_CAPTURE_MODE_RELAXED) return false;
  for (const auto& stream : streams_) {
    if (stream->capture) stream->capture->invalid = true;
  }
  refuse(ACL_ERROR_RT_CAPTURE_MODE_NOT_SUPPORT, std::string(call) + " waits, which no stream may that is captured");
  return true;
}

aclError Device::wait(const char* call, Time until) {
  {
    const std::lock_guard lock(mutex_);
    if (refuse_in_capture(call)) return ACL_ERROR_RT_CAPTURE_MODE_NOT_SUPPORT;
  }
  // Without the lock: other threads go on submitting.
  clock_.wait_until(until);
  const std::lock_guard lock(mutex_);
  return failed_ ? ACL_ERROR_RT_VECTOR_CORE_EXCEPTION : ACL_SUCCESS;
}

aclError Device::synchronize(Stream* stream) {
  Time ready;
  {
    const std::lock_guard lock(mutex_);
    ready = stream->ready;
  }
  return wait("synchronizing a stream", ready);
}

aclError Device::synchronize(const Event& event) {
  Time at;
  {
    const std::lock_guard lock(mutex_);
    at = event.at;
  }
  return wait("synchronizing an event", at);
}

Time Device::all_ready() const {
  const std::lock_guard lock(mutex_);
  Time latest{};
  for (const auto& stream : streams_) latest = std::max(latest, stream->ready);
  return latest;
}

aclError Device::synchronize_all() { return wait("synchronizing the device", all_ready()); }

aclError Device::drain() {
  {
    std::unique_lock lock(plans_mutex_);
    plans_done_.wait_for(lock, kLaunchLimit, [this] { return plans_ == 0; });
  }
  return synchronize_all();
}

void Device::planned() {
  const std::lock_guard lock(plans_mutex_);
  ++plans_;
}

void Device::launched() {
  const std::lock_guard lock(plans_mutex_);
  if (--plans_ == 0) plans_done_.notify_all();
}

aclError Device::begin_capture(Stream* stream) {
  const std::lock_guard lock(mutex_);
  if (stream->capture) return refuse(ACL_ERROR_RT_STREAM_CAPTURED, "the stream is being captured already");
  stream->capture = std::make_shared<Graph>();
  stream->capture->id = next_graph_++;
  ++captures_;
  return ACL_SUCCESS;
}

aclError Device::end_capture(Stream* stream, std::shared_ptr<Graph>& graph) {
  const std::lock_guard lock(mutex_);
  if (!stream->capture) return refuse(ACL_ERROR_RT_STREAM_NOT_CAPTURED, "the stream is not being captured");
  graph = stream->capture;
  for (const auto& member : streams_) {
    if (member->capture == graph) member->capture.reset();
  }
  --captures_;
  return graph->invalid ? refuse(ACL_ERROR_RT_STREAM_CAPTURE_INVALIDATED, "a call that waits ended the capture")
                        : ACL_SUCCESS;
}

std::shared_ptr<Graph> Device::capture_of(const Stream& stream) const {
  const std::lock_guard lock(mutex_);
  return stream.capture;
}

aclmdlRICaptureMode Device::exchange_mode(aclmdlRICaptureMode mode) { return std::exchange(thread_mode, mode); }

void Device::fail(const std::string& reason) {
  const std::lock_guard lock(mutex_);
  failed_ = true;
  refuse(ACL_ERROR_RT_VECTOR_CORE_EXCEPTION, reason);
  std::fprintf(stderr, "CANN stand-in: %s\n", reason.c_str());
}

}  // namespace stand_in
