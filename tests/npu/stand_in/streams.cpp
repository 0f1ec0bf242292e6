// Streams and events, and waiting for them.
#include "call_log.h"
#include "device.h"

using stand_in::Device;
using stand_in::Event;
using stand_in::Stream;

namespace {

// A handle owns a share of its event: a graph may record one that its owner has destroyed.
using EventHandle = std::shared_ptr<Event>;

EventHandle& event_of(aclrtEvent handle) { return *static_cast<EventHandle*>(handle); }

aclError create_event(aclrtEvent* event) {
  *event = new EventHandle(std::make_shared<Event>());
  return ACL_SUCCESS;
}

}  // namespace

extern "C" {

aclError aclrtCreateStream(aclrtStream* stream) {
  *stream = Device::instance().create_stream();
  return ACL_SUCCESS;
}

aclError aclrtCreateStreamWithConfig(aclrtStream* stream, uint32_t, uint32_t) { return aclrtCreateStream(stream); }

aclError aclrtDestroyStream(aclrtStream stream) {
  Device::instance().destroy_stream(static_cast<Stream*>(stream));
  return ACL_SUCCESS;
}

aclError aclrtDestroyStreamForce(aclrtStream stream) { return aclrtDestroyStream(stream); }

aclError aclrtStreamGetId(aclrtStream stream, int32_t* id) {
  *id = Device::instance().stream(stream)->id;
  return ACL_SUCCESS;
}

aclError aclrtStreamQuery(aclrtStream handle, aclrtStreamStatus* status) {
  auto& device = Device::instance();
  *status = device.idle(*device.stream(handle)) ? ACL_STREAM_STATUS_COMPLETE : ACL_STREAM_STATUS_NOT_READY;
  return ACL_SUCCESS;
}

aclError aclrtSynchronizeStream(aclrtStream stream) {
  stand_in::log_call("aclrtSynchronizeStream");
  auto& device = Device::instance();
  return device.synchronize(device.stream(stream));
}

aclError aclrtSynchronizeStreamWithTimeout(aclrtStream stream, int32_t) { return aclrtSynchronizeStream(stream); }

aclError aclrtSynchronizeDevice() {
  stand_in::log_call("aclrtSynchronizeDevice");
  return Device::instance().synchronize_all();
}

aclError aclrtSynchronizeDeviceWithTimeout(int32_t) { return aclrtSynchronizeDevice(); }

aclError aclrtCreateEventWithFlag(aclrtEvent* event, uint32_t) { return create_event(event); }

aclError aclrtCreateEventExWithFlag(aclrtEvent* event, uint32_t) { return create_event(event); }

aclError aclrtDestroyEvent(aclrtEvent event) {
  delete static_cast<EventHandle*>(event);
  return ACL_SUCCESS;
}

aclError aclrtResetEvent(aclrtEvent, aclrtStream) { return ACL_SUCCESS; }

aclError aclrtRecordEvent(aclrtEvent event, aclrtStream stream) {
  stand_in::log_call("aclrtRecordEvent");
  auto& device = Device::instance();
  device.record(device.stream(stream), event_of(event));
  return ACL_SUCCESS;
}

aclError aclrtStreamWaitEvent(aclrtStream stream, aclrtEvent event) {
  stand_in::log_call("aclrtStreamWaitEvent");
  auto& device = Device::instance();
  device.wait_for(device.stream(stream), event_of(event));
  return ACL_SUCCESS;
}

aclError aclrtSynchronizeEvent(aclrtEvent event) {
  stand_in::log_call("aclrtSynchronizeEvent");
  return Device::instance().synchronize(*event_of(event));
}

aclError aclrtQueryEventStatus(aclrtEvent event, aclrtEventRecordedStatus* status) {
  *status = Device::instance().reached(*event_of(event)) ? ACL_EVENT_RECORDED_STATUS_COMPLETE
                                                         : ACL_EVENT_RECORDED_STATUS_NOT_READY;
  return ACL_SUCCESS;
}

aclError aclrtQueryEventWaitStatus(aclrtEvent event, aclrtEventWaitStatus* status) {
  *status = Device::instance().reached(*event_of(event)) ? ACL_EVENT_WAIT_STATUS_COMPLETE
                                                         : ACL_EVENT_WAIT_STATUS_NOT_READY;
  return ACL_SUCCESS;
}

aclError aclrtEventElapsedTime(float* milliseconds, aclrtEvent begin, aclrtEvent end) {
  const auto elapsed = Device::instance().between(*event_of(begin), *event_of(end));
  *milliseconds = std::chrono::duration<float, std::milli>(elapsed).count();
  return ACL_SUCCESS;
}

}  // extern "C"
