// The two calls that make up an aclnn operator: plan it, which gives an executor, and launch that on a stream.
#pragma once

#include <acl/acl.h>

#include <cstdint>
#include <functional>

#include "tensor.h"
#include "values.h"

struct aclOpExecutor;

namespace stand_in {

// Prices the operator that `plan_name`, "<operator>GetWorkspaceSize", plans, and wraps what it does. `elements` and
// `indices` are what its cost depends on. Tensors are captured by value: the caller destroys its own after the launch.
int plan(const char* plan_name, int64_t elements, int64_t indices, std::function<void()> compute, uint64_t* workspace,
         aclOpExecutor** executor);
int launch(aclOpExecutor* executor, aclrtStream stream);

// An index beyond the table: the device fails, as a real one does.
void fail_out_of_range(int64_t index, int64_t size);

// The row that a possibly negative index means, or -1 after failing.
inline int64_t wrapped(int64_t index, int64_t size) {
  const int64_t row = index < 0 ? index + size : index;
  if (row >= 0 && row < size) return row;
  fail_out_of_range(index, size);
  return -1;
}

}  // namespace stand_in

// OPERATOR(aclnnX)(arguments, PLANNED) { return PLAN(elements, indices, [] { ... }); } defines both calls of aclnnX.
#define OPERATOR(name)                                                                \
  extern "C" int name(void*, uint64_t, aclOpExecutor* executor, aclrtStream stream) { \
    return stand_in::launch(executor, stream);                                        \
  }                                                                                   \
  extern "C" int name##GetWorkspaceSize
#define PLANNED uint64_t *workspace, aclOpExecutor **executor
#define PLAN(elements, indices, ...) stand_in::plan(__func__, elements, indices, __VA_ARGS__, workspace, executor)
