// Graph capture and replay: the part of the model runtime that torch.npu.NPUGraph uses.
#include <set>

#include "call_log.h"
#include "device.h"
#include "script.h"

using stand_in::Device;
using stand_in::Graph;

namespace {

// A handle is the graph's address from the start of its capture on: torch_npu compares the two.
Graph& graph_of(aclmdlRI handle) { return *static_cast<Graph*>(handle); }

// The graphs that were captured and not destroyed.
std::mutex graphs_mutex;
std::set<std::shared_ptr<Graph>> graphs;

}  // namespace

extern "C" {

aclError aclmdlRICaptureBegin(aclrtStream stream, aclmdlRICaptureMode mode) {
  stand_in::log_call("aclmdlRICaptureBegin");
  auto& device = Device::instance();
  device.exchange_mode(mode);
  return device.begin_capture(device.stream(stream));
}

aclError aclmdlRICaptureGetInfo(aclrtStream handle, aclmdlRICaptureStatus* status, aclmdlRI* model) {
  auto& device = Device::instance();
  const auto capture = device.capture_of(*device.stream(handle));
  *status = !capture             ? ACL_MODEL_RI_CAPTURE_STATUS_NONE
            : capture->invalid ? ACL_MODEL_RI_CAPTURE_STATUS_INVALIDATED
                                 : ACL_MODEL_RI_CAPTURE_STATUS_ACTIVE;
  if (model != nullptr) *model = capture.get();
  return ACL_SUCCESS;
}

aclError aclmdlRICaptureEnd(aclrtStream stream, aclmdlRI* model) {
  stand_in::log_call("aclmdlRICaptureEnd");
  auto& device = Device::instance();
  std::shared_ptr<Graph> graph;
  const aclError ended = device.end_capture(device.stream(stream), graph);
  device.exchange_mode(ACL_MODEL_RI_CAPTURE_MODE_GLOBAL);
  *model = graph.get();
  const std::lock_guard lock(graphs_mutex);
  if (graph) graphs.insert(graph);
  return ended;
}

aclError aclmdlRICaptureThreadExchangeMode(aclmdlRICaptureMode* mode) {
  *mode = Device::instance().exchange_mode(*mode);
  return ACL_SUCCESS;
}

aclError aclmdlRIGetId(aclmdlRI model, uint32_t* id) {
  *id = graph_of(model).id;
  return ACL_SUCCESS;
}

aclError aclmdlRIExecuteAsync(aclmdlRI model, aclrtStream handle) {
  stand_in::log_call("aclmdlRIExecuteAsync");
  auto& device = Device::instance();
  device.replay(device.stream(handle), graph_of(model), stand_in::price({"aclmdlRIExecuteAsync"}).device);
  return ACL_SUCCESS;
}

aclError aclmdlRIDestroy(aclmdlRI model) {
  const std::lock_guard lock(graphs_mutex);
  if (model != nullptr) graphs.erase(graph_of(model).shared_from_this());
  return ACL_SUCCESS;
}

}  // extern "C"
