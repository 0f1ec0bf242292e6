// Planning and launching, the same for all operators.
#include "operator.h"

#include <string>

#include "../call_log.h"
#include "../device.h"
#include "../script.h"

struct aclOpExecutor {
  stand_in::Work work;
  stand_in::Task task;
};

namespace stand_in {

int plan(const char* plan_name, int64_t elements, int64_t indices, std::function<void()> compute, uint64_t* workspace,
         aclOpExecutor** executor) {
  std::string name = plan_name;
  name.resize(name.size() - std::string("GetWorkspaceSize").size());
  const Work work{name, elements, indices};
  const Price cost = price(work);
  spend(cost.host);
  auto& device = Device::instance();
  if (cost.synchronizes) {
    // An operator that waits does it here, on the thread that calls it: that is how a CANN operator holds up the host.
    const aclError waited = device.drain();
    if (waited != ACL_SUCCESS) return waited;
  }
  *workspace = 0;
  *executor = new aclOpExecutor{work, {[compute = std::move(compute)](Time) { compute(); }, cost.device}};
  device.planned();
  return ACL_SUCCESS;
}

int launch(aclOpExecutor* executor, aclrtStream stream) {
  const std::unique_ptr<aclOpExecutor> owned(executor);
  log_call(owned->work.name);
  auto& device = Device::instance();
  device.submit(device.stream(stream), std::move(owned->task));
  device.launched();
  return ACL_SUCCESS;
}

void fail_out_of_range(int64_t index, int64_t size) {
  Device::instance().fail("index " + std::to_string(index) + " is out of range for " + std::to_string(size) + " rows");
}

}  // namespace stand_in
