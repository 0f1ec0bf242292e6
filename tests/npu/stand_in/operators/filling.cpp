// Operators that fill and copy.
#include "operator.h"

using namespace stand_in;

namespace {

// Elements are handled in pieces of this many, which stay in the processor's cache.
constexpr int64_t kPiece = 2048;

void fill(const Tensor& tensor, const Tensor& value) {
  const Element element(value, tensor.type);
  Cursor cursor(tensor);
  for (int64_t left = tensor.count(); left > 0;) {
    const Cursor::Run run = cursor.next(left);
    element.store(run);
    left -= run.count;
  }
}

void copy(const Tensor& to, const Tensor& from) {
  in_common_type({from}, [&](auto zero) {
    decltype(zero) values[kPiece];
    Cursor source(from, to.sizes);
    Cursor destination(to);
    for (int64_t left = to.count(); left > 0; left -= kPiece) {
      const int64_t piece = std::min(left, kPiece);
      read(source, from.type, values, piece);
      write(destination, to.type, values, piece);
    }
  });
}

Tensor integer(int64_t value) {
  Tensor scalar;
  scalar.owned = std::make_shared<std::vector<char>>(sizeof value);
  scalar.data = scalar.owned->data();
  std::memcpy(scalar.data, &value, sizeof value);
  return scalar;
}

}  // namespace

OPERATOR(aclnnInplaceZero)(aclTensor* self, PLANNED) {
  return PLAN(self->count(), 0, [self = *self] { fill(self, integer(0)); });
}

OPERATOR(aclnnInplaceOne)(aclTensor* self, PLANNED) {
  return PLAN(self->count(), 0, [self = *self] { fill(self, integer(1)); });
}

OPERATOR(aclnnInplaceFillScalar)(aclTensor* self, const aclScalar* value, PLANNED) {
  return PLAN(self->count(), 0, [self = *self, value = value->value] { fill(self, value); });
}

OPERATOR(aclnnInplaceFillTensor)(aclTensor* self, const aclTensor* value, PLANNED) {
  return PLAN(self->count(), 0, [self = *self, value = *value] { fill(self, value); });
}

OPERATOR(aclnnInplaceCopy)(aclTensor* self, const aclTensor* source, PLANNED) {
  return PLAN(self->count(), 0, [self = *self, source = *source] { copy(self, source); });
}

OPERATOR(aclnnCast)(const aclTensor* self, aclDataType, aclTensor* out, PLANNED) {
  return PLAN(out->count(), 0, [self = *self, out = *out] { copy(out, self); });
}

OPERATOR(aclnnArange)(const aclScalar* start, const aclScalar*, const aclScalar* step, aclTensor* out, PLANNED) {
  return PLAN(out->count(), 0, [start = start->value, step = step->value, out = *out] {
    in_common_type({start, step, out}, [&](auto zero) {
      using Number = decltype(zero);
      const Number first = read_all<Number>(start)[0];
      const Number distance = read_all<Number>(step)[0];
      std::vector<Number> values(static_cast<size_t>(out.count()));
      for (size_t i = 0; i < values.size(); ++i) values[i] = first + static_cast<Number>(i) * distance;
      write_all(out, values);
    });
  });
}

OPERATOR(aclnnCat)(const aclTensorList* list, int64_t dim, aclTensor* out, PLANNED) {
  std::vector<Tensor> parts;
  for (const auto* tensor : list->tensors) parts.push_back(*tensor);
  return PLAN(out->count(), 0, [parts, axis = dimension(*out, dim), out = *out] {
    Tensor part_of_out = out;
    for (const Tensor& part : parts) {
      // PyTorch lets an empty vector be concatenated with anything.
      if (part.count() == 0) continue;
      part_of_out.sizes[axis] = part.sizes[axis];
      copy(part_of_out, part);
      part_of_out.offset += part.sizes[axis] * out.strides[axis];
    }
  });
}

OPERATOR(aclnnStack)(const aclTensorList* list, int64_t dim, aclTensor* out, PLANNED) {
  std::vector<Tensor> parts;
  for (const auto* tensor : list->tensors) parts.push_back(*tensor);
  return PLAN(out->count(), 0, [parts, axis = dimension(*out, dim), out = *out] {
    Tensor part_of_out = out;
    part_of_out.sizes.erase(part_of_out.sizes.begin() + axis);
    part_of_out.strides.erase(part_of_out.strides.begin() + axis);
    for (const Tensor& part : parts) {
      copy(part_of_out, part);
      part_of_out.offset += out.strides[axis];
    }
  });
}

OPERATOR(aclnnFlip)(const aclTensor* self, const aclIntArray* dims, aclTensor* out, PLANNED) {
  Tensor reversed = *self;
  for (const int64_t dim : dims->values) {
    const int64_t axis = dimension(reversed, dim);
    reversed.offset += (reversed.sizes[axis] - 1) * reversed.strides[axis];
    reversed.strides[axis] = -reversed.strides[axis];
  }
  return PLAN(out->count(), 0, [reversed, out = *out] { copy(out, reversed); });
}

// Each dimension turns into two, how often and how long, and what is copied does not move along the first.
OPERATOR(aclnnRepeat)(const aclTensor* self, const aclIntArray* repeats, aclTensor* out, PLANNED) {
  Tensor to = *out;
  Tensor from = *self;
  for (Tensor* tensor : {&to, &from}) {
    tensor->sizes.clear();
    tensor->strides.clear();
  }
  const int64_t added = out->rank() - self->rank();
  for (int64_t axis = 0; axis < out->rank(); ++axis) {
    const int64_t size = axis < added ? 1 : self->sizes[axis - added];
    const int64_t stride = axis < added ? 0 : self->strides[axis - added];
    for (Tensor* tensor : {&to, &from}) tensor->sizes.insert(tensor->sizes.end(), {repeats->values[axis], size});
    to.strides.insert(to.strides.end(), {size * out->strides[axis], out->strides[axis]});
    from.strides.insert(from.strides.end(), {0, stride});
  }
  return PLAN(out->count(), 0, [from, to] { copy(to, from); });
}

// Occupies the stream and nothing else. The unit is the device's cycle, taken as a nanosecond.
OPERATOR(aclnnSleep)(const aclIntArray* cycles, PLANNED) { return PLAN(cycles->values.at(0), 0, [] {}); }
