// Operators whose results come in another order or number: sorts, uniques, masks turned into positions, repetitions.
#include <numeric>

#include "operator.h"

using namespace stand_in;

namespace {

// For results whose size depends on the data: the caller asks for the shape after the launch. The memory that was
// passed in is filled from its start.
void resize(aclTensor* out, const Sizes& sizes) {
  out->sizes = sizes;
  out->strides.assign(sizes.size(), 1);
  for (size_t axis = sizes.size(); axis-- > 1;) out->strides[axis - 1] = out->strides[axis] * sizes[axis];
}

template <class Number>
void write_resized(aclTensor* out, const std::vector<Number>& values) {
  resize(out, {static_cast<int64_t>(values.size())});
  write_all(*out, values);
}

// Runs of equal values: where each begins, and the number of the run that each value belongs to.
template <class Number>
void find_runs(const std::vector<Number>& values, std::vector<size_t>& begins, std::vector<int64_t>& run_of) {
  for (size_t i = 0; i < values.size(); ++i) {
    if (i == 0 || values[i] != values[i - 1]) begins.push_back(i);
    run_of.push_back(static_cast<int64_t>(begins.size()) - 1);
  }
}

// The values of each run of equals in `values`, read in the order `order`.
template <class Number>
void unique_of(const std::vector<Number>& values, const std::vector<size_t>& order, aclTensor* out, aclTensor* inverse,
               aclTensor* counts) {
  std::vector<Number> ordered;
  for (const size_t i : order) ordered.push_back(values[i]);
  std::vector<size_t> begins;
  std::vector<int64_t> run_of;
  find_runs(ordered, begins, run_of);

  std::vector<Number> unique;
  std::vector<int64_t> lengths;
  for (size_t run = 0; run < begins.size(); ++run) {
    unique.push_back(ordered[begins[run]]);
    lengths.push_back(static_cast<int64_t>((run + 1 < begins.size() ? begins[run + 1] : ordered.size()) - begins[run]));
  }
  write_resized(out, unique);
  // Tensors without room were not asked for.
  if (inverse != nullptr && inverse->count() == static_cast<int64_t>(values.size())) {
    std::vector<int64_t> positions(values.size());
    for (size_t i = 0; i < order.size(); ++i) positions[order[i]] = run_of[i];
    write_all(*inverse, positions);
  }
  if (counts != nullptr && counts->count() > 0) write_resized(counts, lengths);
}

template <class Number>
std::vector<size_t> sorted_order(const std::vector<Number>& values, bool descending = false) {
  std::vector<size_t> order(values.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t left, size_t right) {
    return descending ? values[left] > values[right] : values[left] < values[right];
  });
  return order;
}

void unique(const Tensor& self, bool sort, aclTensor* out, aclTensor* inverse, aclTensor* counts) {
  in_common_type({self}, [&](auto zero) {
    const auto values = read_all<decltype(zero)>(self);
    std::vector<size_t> order(values.size());
    std::iota(order.begin(), order.end(), size_t{0});
    unique_of(values, sort ? sorted_order(values) : order, out, inverse, counts);
  });
}

// The tensor as separate one-dimensional ones along `dim`.
std::vector<Tensor> lines(const Tensor& tensor, int64_t dim) {
  const int64_t axis = dimension(tensor, dim);
  std::vector<Tensor> all;
  for (const int64_t offset : offsets(tensor, {axis})) {
    all.push_back({{tensor.sizes[axis]}, {tensor.strides[axis]}, 0, tensor.type, tensor.begin() + offset, {}});
  }
  return all;
}

void sort(const Tensor& self, int64_t dim, bool descending, const Tensor* values_out, const Tensor& positions_out) {
  if (self.count() == 0) return;
  const auto sources = lines(self, dim);
  const auto positions = lines(positions_out, dim);
  for (size_t i = 0; i < sources.size(); ++i) {
    in_common_type({self}, [&](auto zero) {
      const auto values = read_all<decltype(zero)>(sources[i]);
      const auto order = sorted_order(values, descending);
      write_all(positions[i], std::vector<int64_t>(order.begin(), order.end()));
      if (values_out == nullptr) return;
      std::vector<decltype(zero)> sorted;
      for (const size_t from : order) sorted.push_back(values[from]);
      write_all(lines(*values_out, dim)[i], sorted);
    });
  }
}

// The positions, dimension by dimension, of the elements that are not zero.
std::vector<Sizes> nonzero_positions(const Tensor& self) {
  std::vector<Sizes> positions;
  const auto set = read_all<double>(self);
  for (size_t i = 0; i < set.size(); ++i) {
    if (set[i] == 0) continue;
    Sizes position(self.sizes.size());
    auto rest = static_cast<int64_t>(i);
    for (size_t axis = position.size(); axis-- > 0;) {
      position[axis] = rest % self.sizes[axis];
      rest /= self.sizes[axis];
    }
    positions.push_back(position);
  }
  return positions;
}

// out = self with row i along `dim` repeated repeats[i] times.
void repeat_rows(const Tensor& self, const std::vector<int64_t>& repeats, int64_t dim, const Tensor& out) {
  const auto sources = lines(self, dim);
  const auto destinations = lines(out, dim);
  for (size_t line = 0; line < sources.size(); ++line) {
    in_common_type({self}, [&](auto zero) {
      std::vector<decltype(zero)> repeated;
      const auto values = read_all<decltype(zero)>(sources[line]);
      for (size_t i = 0; i < values.size(); ++i) {
        // One number of repetitions serves all.
        repeated.insert(repeated.end(), static_cast<size_t>(repeats[repeats.size() == 1 ? 0 : i]), values[i]);
      }
      write_all(destinations[line], repeated);
    });
  }
}

// Without a dimension the tensor is taken as one row.
Tensor flat(const Tensor& tensor) {
  Tensor one_row{{tensor.count()}, {1}, 0, tensor.type, nullptr, {}};
  one_row.owned = std::make_shared<std::vector<char>>(static_cast<size_t>(tensor.count()) * bytes_of(tensor.type));
  one_row.data = one_row.owned->data();
  in_common_type({tensor}, [&](auto zero) { write_all(one_row, read_all<decltype(zero)>(tensor)); });
  return one_row;
}

// out = self shifted along dims[next], dims[next + 1], ..., what falls off one end coming back at the other.
void roll(const Tensor& out, const Tensor& self, const std::vector<int64_t>& shifts, const std::vector<int64_t>& dims,
          size_t next = 0) {
  if (out.count() == 0) return;
  if (next == dims.size()) {
    in_common_type({self}, [&](auto zero) { write_all(out, read_all<decltype(zero)>(self)); });
    return;
  }
  const int64_t axis = dimension(self, dims[next]);
  const int64_t size = self.sizes[axis];
  const int64_t shift = ((shifts[next] % size) + size) % size;
  const auto part = [axis](Tensor tensor, int64_t begin, int64_t length) {
    tensor.offset += begin * tensor.strides[axis];
    tensor.sizes[axis] = length;
    return tensor;
  };
  roll(part(out, shift, size - shift), part(self, 0, size - shift), shifts, dims, next + 1);
  roll(part(out, 0, shift), part(self, size - shift, shift), shifts, dims, next + 1);
}

}  // namespace

OPERATOR(aclnnUnique)(const aclTensor* self, bool, bool, aclTensor* out, aclTensor* inverse, PLANNED) {
  return PLAN(self->count(), 0, [self = *self, out, inverse] { unique(self, true, out, inverse, nullptr); });
}

OPERATOR(aclnnUnique2)(const aclTensor* self, bool, bool, bool, aclTensor* out, aclTensor* inverse, aclTensor* counts,
                       PLANNED) {
  return PLAN(self->count(), 0, [self = *self, out, inverse, counts] { unique(self, true, out, inverse, counts); });
}

OPERATOR(aclnnUniqueConsecutive)(const aclTensor* self, bool, bool, int64_t, aclTensor* out, aclTensor* inverse,
                                 aclTensor* counts, PLANNED) {
  return PLAN(self->count(), 0, [self = *self, out, inverse, counts] { unique(self, false, out, inverse, counts); });
}

// [n, dimensions]
OPERATOR(aclnnNonzero)(const aclTensor* self, aclTensor* out, PLANNED) {
  return PLAN(self->count(), 0, [self = *self, out] {
    const auto positions = nonzero_positions(self);
    std::vector<int64_t> values;
    for (const Sizes& position : positions) values.insert(values.end(), position.begin(), position.end());
    resize(out, {static_cast<int64_t>(positions.size()), self.rank()});
    write_all(*out, values);
  });
}

// [dimensions, n]
OPERATOR(aclnnNonzeroV2)(const aclTensor* self, aclTensor* out, PLANNED) {
  return PLAN(self->count(), 0, [self = *self, out] {
    const auto positions = nonzero_positions(self);
    std::vector<int64_t> values;
    for (int64_t axis = 0; axis < self.rank(); ++axis) {
      for (const Sizes& position : positions) values.push_back(position[axis]);
    }
    resize(out, {self.rank(), static_cast<int64_t>(positions.size())});
    write_all(*out, values);
  });
}

OPERATOR(aclnnMaskedSelect)(const aclTensor* self, const aclTensor* mask, aclTensor* out, PLANNED) {
  return PLAN(self->count(), 0, [self = *self, mask = *mask, out] {
    const Sizes& shape = self.count() >= mask.count() ? self.sizes : mask.sizes;
    in_common_type({self}, [&](auto zero) {
      const auto values = read_all<decltype(zero)>(self, shape);
      const auto set = read_all<int64_t>(mask, shape);
      std::vector<decltype(zero)> selected;
      for (size_t i = 0; i < values.size(); ++i) {
        if (set[i] != 0) selected.push_back(values[i]);
      }
      write_resized(out, selected);
    });
  });
}

OPERATOR(aclnnRoll)(const aclTensor* self, const aclIntArray* shifts, const aclIntArray* dims, aclTensor* out,
                    PLANNED) {
  return PLAN(out->count(), 0, [self = *self, shifts = shifts->values, dims = dims->values, out = *out] {
    if (!dims.empty()) {
      roll(out, self, shifts, dims);
      return;
    }
    const Tensor row = flat(self);
    Tensor rolled = flat(self);
    roll(rolled, row, shifts, {0});
    in_common_type({self}, [&](auto zero) { write_all(out, read_all<decltype(zero)>(rolled)); });
  });
}

OPERATOR(aclnnSort)(const aclTensor* self, bool, int64_t dim, bool descending, aclTensor* values, aclTensor* indices,
                    PLANNED) {
  return PLAN(self->count(), 0, [self = *self, dim, descending, values = *values, indices = *indices] {
    sort(self, dim, descending, &values, indices);
  });
}

OPERATOR(aclnnArgsort)(const aclTensor* self, int64_t dim, bool descending, aclTensor* indices, PLANNED) {
  return PLAN(self->count(), 0,
              [self = *self, dim, descending, indices = *indices] { sort(self, dim, descending, nullptr, indices); });
}

OPERATOR(aclnnCumsum)(const aclTensor* self, int64_t dim, aclDataType, aclTensor* out, PLANNED) {
  return PLAN(self->count(), 0, [self = *self, dim, out = *out] {
    if (self.count() == 0) return;
    const auto sources = lines(self, dim);
    const auto destinations = lines(out, dim);
    for (size_t i = 0; i < sources.size(); ++i) {
      in_common_type({self, out}, [&](auto zero) {
        auto values = read_all<decltype(zero)>(sources[i]);
        std::partial_sum(values.begin(), values.end(), values.begin());
        write_all(destinations[i], values);
      });
    }
  });
}

// The variants of repeat_interleave: the repetitions are a number or a tensor, along one dimension or flat.
OPERATOR(aclnnRepeatInterleave)(const aclTensor* self, const aclTensor* repeats, int64_t, aclTensor* out, PLANNED) {
  return PLAN(out->count(), repeats->count(), [self = *self, repeats = *repeats, out = *out] {
    repeat_rows(flat(self), read_all<int64_t>(repeats), 0, out);
  });
}

OPERATOR(aclnnRepeatInterleaveWithDim)(const aclTensor* self, const aclTensor* repeats, int64_t dim, int64_t,
                                       aclTensor* out, PLANNED) {
  return PLAN(out->count(), repeats->count(), [self = *self, repeats = *repeats, dim, out = *out] {
    repeat_rows(self, read_all<int64_t>(repeats), dim, out);
  });
}

OPERATOR(aclnnRepeatInterleaveInt)(const aclTensor* self, int64_t repeats, int64_t, aclTensor* out, PLANNED) {
  return PLAN(out->count(), 0, [self = *self, repeats, out = *out] { repeat_rows(flat(self), {repeats}, 0, out); });
}

OPERATOR(aclnnRepeatInterleaveIntWithDim)(const aclTensor* self, int64_t repeats, int64_t dim, int64_t, aclTensor* out,
                                          PLANNED) {
  return PLAN(out->count(), 0, [self = *self, repeats, dim, out = *out] { repeat_rows(self, {repeats}, dim, out); });
}

// Position i, repeats[i] times.
OPERATOR(aclnnRepeatInterleaveTensor)(const aclTensor* repeats, int64_t, aclTensor* out, PLANNED) {
  return PLAN(out->count(), repeats->count(), [repeats = *repeats, out = *out] {
    std::vector<int64_t> values;
    const auto numbers = read_all<int64_t>(repeats);
    for (size_t i = 0; i < numbers.size(); ++i) {
      values.insert(values.end(), static_cast<size_t>(numbers[i]), static_cast<int64_t>(i));
    }
    write_all(out, values);
  });
}
