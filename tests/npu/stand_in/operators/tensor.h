// The arguments of operators: what aclnn calls tensors, scalars and lists.
#pragma once

#include <acl/acl_base.h>

#include <cstdint>
#include <memory>
#include <vector>

namespace stand_in {

using Sizes = std::vector<int64_t>;

int64_t count(const Sizes& sizes);
size_t bytes_of(aclDataType type);
bool is_real(aclDataType type);

}  // namespace stand_in

// A view of memory on the device. Sizes and strides count elements.
struct aclTensor {
  stand_in::Sizes sizes;
  stand_in::Sizes strides;
  int64_t offset = 0;
  aclDataType type = ACL_INT64;
  char* data = nullptr;
  // Set where the tensor holds its own memory: a scalar's value.
  std::shared_ptr<std::vector<char>> owned;

  int64_t count() const { return stand_in::count(sizes); }
  int64_t rank() const { return static_cast<int64_t>(sizes.size()); }
  char* begin() const { return data + offset * static_cast<int64_t>(stand_in::bytes_of(type)); }
};

struct aclScalar {
  aclTensor value;  // without dimensions
};

struct aclIntArray {
  std::vector<int64_t> values;
};
struct aclFloatArray {
  std::vector<float> values;
};
struct aclBoolArray {
  std::vector<bool> values;
};
struct aclTensorList {
  std::vector<const aclTensor*> tensors;
};
struct aclScalarList {
  std::vector<const aclScalar*> scalars;
};

namespace stand_in {

using Tensor = aclTensor;

// The dimension that a possibly negative number means.
int64_t dimension(const Tensor& tensor, int64_t number);

// Distances in bytes from `begin()` of all elements with index 0 in the dimensions that `fixed` names, in order.
std::vector<int64_t> offsets(const Tensor& tensor, const std::vector<int64_t>& fixed = {});

}  // namespace stand_in
