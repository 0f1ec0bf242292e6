// Makes and destroys the arguments of operators.
#include "tensor.h"

#include <algorithm>
#include <cstring>

#include "values.h"

namespace stand_in {

int64_t count(const Sizes& sizes) {
  int64_t product = 1;
  for (const int64_t size : sizes) product *= size;
  return product;
}

size_t bytes_of(aclDataType type) {
  return dispatch(type, [](auto zero) { return sizeof zero; });
}

bool is_real(aclDataType type) {
  return type == ACL_FLOAT || type == ACL_BF16 || type == ACL_DOUBLE;
}

int64_t dimension(const Tensor& tensor, int64_t number) { return number < 0 ? number + tensor.rank() : number; }

std::vector<int64_t> offsets(const Tensor& tensor, const std::vector<int64_t>& fixed) {
  std::vector<int64_t> all{0};
  const auto bytes = static_cast<int64_t>(bytes_of(tensor.type));
  for (int64_t axis = 0; axis < tensor.rank(); ++axis) {
    if (std::find(fixed.begin(), fixed.end(), axis) != fixed.end()) continue;
    std::vector<int64_t> longer;
    longer.reserve(all.size() * static_cast<size_t>(tensor.sizes[axis]));
    for (const int64_t offset : all) {
      for (int64_t i = 0; i < tensor.sizes[axis]; ++i) longer.push_back(offset + i * tensor.strides[axis] * bytes);
    }
    all = std::move(longer);
  }
  return all;
}

}  // namespace stand_in

extern "C" {

aclTensor* aclCreateTensor(const int64_t* sizes, uint64_t rank, aclDataType type, const int64_t* strides,
                           int64_t offset, aclFormat, const int64_t*, uint64_t, void* data) {
  return new aclTensor{stand_in::Sizes(sizes, sizes + rank), stand_in::Sizes(strides, strides + rank), offset, type,
                       static_cast<char*>(data), {}};
}

aclScalar* aclCreateScalar(void* value, aclDataType type) {
  auto* scalar = new aclScalar;
  const auto* bytes = static_cast<const char*>(value);
  scalar->value.owned = std::make_shared<std::vector<char>>(bytes, bytes + stand_in::bytes_of(type));
  scalar->value.data = scalar->value.owned->data();
  scalar->value.type = type;
  return scalar;
}

aclIntArray* aclCreateIntArray(const int64_t* values, uint64_t count) {
  return new aclIntArray{std::vector<int64_t>(values, values + count)};
}
aclFloatArray* aclCreateFloatArray(const float* values, uint64_t count) {
  return new aclFloatArray{std::vector<float>(values, values + count)};
}
aclBoolArray* aclCreateBoolArray(const bool* values, uint64_t count) {
  return new aclBoolArray{std::vector<bool>(values, values + count)};
}
aclTensorList* aclCreateTensorList(const aclTensor* const* tensors, uint64_t count) {
  return new aclTensorList{std::vector<const aclTensor*>(tensors, tensors + count)};
}
aclScalarList* aclCreateScalarList(const aclScalar* const* scalars, uint64_t count) {
  return new aclScalarList{std::vector<const aclScalar*>(scalars, scalars + count)};
}

int aclDestroyTensor(const aclTensor* tensor) {
  delete tensor;
  return 0;
}
int aclDestroyScalar(const aclScalar* scalar) {
  delete scalar;
  return 0;
}
int aclDestroyIntArray(const aclIntArray* array) {
  delete array;
  return 0;
}
int aclDestroyFloatArray(const aclFloatArray* array) {
  delete array;
  return 0;
}
int aclDestroyBoolArray(const aclBoolArray* array) {
  delete array;
  return 0;
}
int aclDestroyTensorList(const aclTensorList* list) {
  // A list owns its members.
  for (const auto* tensor : list->tensors) delete tensor;
  delete list;
  return 0;
}
int aclDestroyScalarList(const aclScalarList* list) {
  for (const auto* scalar : list->scalars) delete scalar;
  delete list;
  return 0;
}

// For operators whose result's size depends on the data. The caller frees the sizes.
int aclGetViewShape(const aclTensor* tensor, int64_t** sizes, uint64_t* rank) {
  *rank = tensor->sizes.size();
  *sizes = new int64_t[*rank + 1];
  std::copy(tensor->sizes.begin(), tensor->sizes.end(), *sizes);
  return 0;
}

}  // extern "C"
