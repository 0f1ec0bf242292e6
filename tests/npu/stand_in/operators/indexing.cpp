// Operators that read or write the elements that indices or masks name.
#include "../device.h"
#include "operator.h"

using namespace stand_in;

namespace {

void add_element(char* to, const char* from, aclDataType type) {
  dispatch(type, [&](auto zero) {
    using T = decltype(zero);
    T left;
    T right;
    std::memcpy(&left, to, sizeof left);
    std::memcpy(&right, from, sizeof right);
    const T sum = convert<T>(convert<double>(left) + convert<double>(right));
    std::memcpy(to, &sum, sizeof sum);
  });
}

// A tensor as rows along one dimension.
class Rows {
 public:
  Rows(const Tensor& tensor, int64_t dim)
      : count(tensor.sizes[dimension(tensor, dim)]),
        elements(offsets(tensor, {dimension(tensor, dim)})),
        begin_(tensor.begin()),
        step_(tensor.strides[dimension(tensor, dim)] * static_cast<int64_t>(bytes_of(tensor.type))) {}

  char* at(int64_t row) const { return begin_ + row * step_; }

  const int64_t count;
  const std::vector<int64_t> elements;  // of a row, in bytes from its first

 private:
  char* begin_;
  int64_t step_;
};

void fill_rows(const Tensor& self, int64_t dim, const std::vector<int64_t>& indices, const Tensor& value) {
  const Rows rows(self, dim);
  const Element element(value, self.type);
  for (const int64_t index : indices) {
    const int64_t row = wrapped(index, rows.count);
    if (row < 0) return;
    for (const int64_t offset : rows.elements) element.store(rows.at(row) + offset);
  }
}

// to[to_rows[i]] = from[from_rows[i]]; an empty list of rows means 0, 1, 2, ...
void copy_rows(const Rows& to, const std::vector<int64_t>& to_rows, const Rows& from,
               const std::vector<int64_t>& from_rows, size_t bytes) {
  const size_t total = std::max(to_rows.size(), from_rows.size());
  for (size_t i = 0; i < total; ++i) {
    const auto number = static_cast<int64_t>(i);
    const int64_t to_row = wrapped(to_rows.empty() ? number : to_rows[i], to.count);
    const int64_t from_row = wrapped(from_rows.empty() ? number : from_rows[i], from.count);
    if (to_row < 0 || from_row < 0) return;
    for (size_t k = 0; k < to.elements.size(); ++k) {
      copy_bytes(to.at(to_row) + to.elements[k], from.at(from_row) + from.elements[k], bytes);
    }
  }
}

// What self[indices] names: the place of each element, in the order of the result.
class Selection {
 public:
  Selection(const Tensor& self, const std::vector<Tensor>& indices) : begin_(self.begin()) {
    std::vector<int64_t> axes;
    std::vector<Tensor> used;
    for (size_t axis = 0; axis < indices.size(); ++axis) {
      // torch_npu passes an empty tensor for a dimension that is not indexed. Alone, it is an empty index.
      if (indices[axis].count() == 0 && indices.size() > 1) continue;
      axes.push_back(static_cast<int64_t>(axis));
      used.push_back(indices[axis]);
    }
    const Sizes picked = common_shape(used);
    places_.assign(static_cast<size_t>(count(picked)), 0);
    for (size_t i = 0; i < used.size(); ++i) add(self, axes[i], read_all<int64_t>(used[i], picked));

    // The picked dimensions take the place of the indexed ones if those are neighbours, else the front.
    const bool neighbours = axes.back() - axes.front() + 1 == static_cast<int64_t>(axes.size());
    std::vector<int64_t> not_before = axes;
    std::vector<int64_t> not_after = axes;
    for (int64_t axis = 0; axis < self.rank(); ++axis) {
      const bool before = neighbours && axis < axes.front();
      (before ? not_after : not_before).push_back(axis);
      if (before) shape.push_back(self.sizes[axis]);
    }
    before_ = offsets(self, not_before);
    after_ = offsets(self, not_after);
    shape.insert(shape.end(), picked.begin(), picked.end());
    for (int64_t axis = 0; axis < self.rank(); ++axis) {
      if (std::find(not_after.begin(), not_after.end(), axis) == not_after.end()) shape.push_back(self.sizes[axis]);
    }
  }

  template <class Function>
  void visit(Function function) const {
    if (out_of_range_) return;
    for (const int64_t before : before_) {
      for (const int64_t place : places_) {
        for (const int64_t after : after_) function(begin_ + before + place + after);
      }
    }
  }

  Sizes shape;  // of the result

 private:
  static Sizes common_shape(const std::vector<Tensor>& tensors) {
    Sizes shape;
    for (const Tensor& tensor : tensors) {
      if (tensor.sizes.size() > shape.size()) shape.insert(shape.begin(), tensor.sizes.size() - shape.size(), 1);
      for (size_t back = 1; back <= tensor.sizes.size(); ++back) {
        int64_t& size = shape[shape.size() - back];
        if (size == 1) size = tensor.sizes[tensor.sizes.size() - back];
      }
    }
    return shape;
  }

  void add(const Tensor& self, int64_t axis, const std::vector<int64_t>& rows) {
    const int64_t step = self.strides[axis] * static_cast<int64_t>(bytes_of(self.type));
    for (size_t i = 0; i < rows.size(); ++i) {
      const int64_t row = wrapped(rows[i], self.sizes[axis]);
      if (row < 0) {
        out_of_range_ = true;
        return;
      }
      places_[i] += row * step;
    }
  }

  char* begin_;
  std::vector<int64_t> before_;
  std::vector<int64_t> places_;
  std::vector<int64_t> after_;
  bool out_of_range_ = false;
};

std::vector<Tensor> copies(const aclTensorList* list) {
  std::vector<Tensor> tensors;
  for (const auto* tensor : list->tensors) tensors.push_back(*tensor);
  return tensors;
}

int64_t largest_count(const std::vector<Tensor>& tensors) {
  int64_t largest = 0;
  for (const Tensor& tensor : tensors) largest = std::max(largest, tensor.count());
  return largest;
}

// `self` where `index` points into it along `dim`: calls function(place in self, number of the index's element).
template <class Function>
void along(const Tensor& self, int64_t dim, const Tensor& index, Function function) {
  const int64_t axis = dimension(self, dim);
  Tensor starts = self;
  starts.sizes = index.sizes;
  starts.strides[axis] = 0;
  Cursor cursor(starts);
  const int64_t step = self.strides[axis] * static_cast<int64_t>(bytes_of(self.type));
  for (const int64_t position : read_all<int64_t>(index)) {
    const int64_t row = wrapped(position, self.sizes[axis]);
    if (row < 0) return;
    function(cursor.next() + row * step);
  }
}

// The part of `self` that an index of that size goes with.
Tensor part_like(const Tensor& self, const Tensor& index) {
  Tensor part = self;
  part.sizes = index.sizes;
  return part;
}

// Calls function(place) for each element of `self` where `mask`, broadcast to it, is set.
template <class Function>
void where(const Tensor& self, const Tensor& mask, Function function) {
  constexpr int64_t kPiece = 2048;
  int64_t set[kPiece];
  Cursor places(self);
  Cursor marks(mask, self.sizes);
  for (int64_t left = self.count(); left > 0; left -= kPiece) {
    const int64_t piece = std::min(left, kPiece);
    read(marks, mask.type, set, piece);
    // Most pieces of most masks have nothing set.
    const bool any = std::any_of(set, set + piece, [](int64_t mark) { return mark != 0; });
    for (int64_t done = 0; done < piece;) {
      const Cursor::Run run = places.next(piece - done);
      for (int64_t i = 0; any && i < run.count; ++i) {
        if (set[done + i] != 0) function(run.at + i * run.step);
      }
      done += run.count;
    }
  }
}

int refuse_reduction() {
  return refuse(ACL_ERROR_FEATURE_UNSUPPORTED, "the stand-in scatters without reducing");
}

void fill_masked(const Tensor& self, const Tensor& mask, const Tensor& value) {
  const Element element(value, self.type);
  where(self, mask, [&](char* place) { element.store(place); });
}

}  // namespace

OPERATOR(aclnnInplaceIndexFill)(aclTensor* self, int64_t dim, const aclTensor* index, const aclScalar* value, PLANNED) {
  return PLAN(self->count(), index->count(), [self = *self, dim, index = *index, value = value->value] {
    fill_rows(self, dim, read_all<int64_t>(index), value);
  });
}

// Takes the indices from the host.
OPERATOR(aclnnInplaceIndexFillTensor)(aclTensor* self, int64_t dim, const aclIntArray* index, const aclScalar* value,
                                      PLANNED) {
  return PLAN(self->count(), static_cast<int64_t>(index->values.size()),
              [self = *self, dim, index = index->values, value = value->value] { fill_rows(self, dim, index, value); });
}

OPERATOR(aclnnInplaceIndexCopy)(aclTensor* self, int64_t dim, const aclTensor* index, const aclTensor* source,
                                PLANNED) {
  return PLAN(self->count(), index->count(), [self = *self, dim, index = *index, source = *source] {
    // A source without dimensions is one row of one element.
    const Tensor rows = source.rank() > 0 ? source : Tensor{{1}, {1}, source.offset, source.type, source.data, {}};
    copy_rows(Rows(self, dim), read_all<int64_t>(index), Rows(rows, dim), {}, bytes_of(self.type));
  });
}

OPERATOR(aclnnIndexSelect)(const aclTensor* self, int64_t dim, const aclTensor* index, aclTensor* out, PLANNED) {
  return PLAN(out->count(), index->count(), [self = *self, dim, index = *index, out = *out] {
    copy_rows(Rows(out, dim), {}, Rows(self, dim), read_all<int64_t>(index), bytes_of(self.type));
  });
}

OPERATOR(aclnnIndex)(const aclTensor* self, const aclTensorList* indices, aclTensor* out, PLANNED) {
  const auto tensors = copies(indices);
  return PLAN(out->count(), largest_count(tensors), [self = *self, tensors, out = *out] {
    if (out.count() == 0) return;
    Cursor to(out);
    const size_t bytes = bytes_of(self.type);
    Selection(self, tensors).visit([&](char* place) { copy_bytes(to.next(), place, bytes); });
  });
}

OPERATOR(aclnnIndexPutImpl)(aclTensor* self, const aclTensorList* indices, const aclTensor* values, bool accumulate,
                            bool, PLANNED) {
  const auto tensors = copies(indices);
  return PLAN(self->count(), largest_count(tensors), [self = *self, tensors, values = *values, accumulate] {
    const Selection selection(self, tensors);
    Cursor from(values, selection.shape);
    const size_t bytes = bytes_of(self.type);
    selection.visit([&](char* place) {
      if (accumulate) {
        add_element(place, from.next(), self.type);
      } else {
        copy_bytes(place, from.next(), bytes);
      }
    });
  });
}

OPERATOR(aclnnGather)(const aclTensor* self, int64_t dim, const aclTensor* index, aclTensor* out, PLANNED) {
  return PLAN(out->count(), index->count(), [self = *self, dim, index = *index, out = *out] {
    Cursor to(out);
    along(self, dim, index, [&](char* place) { copy_bytes(to.next(), place, bytes_of(self.type)); });
  });
}

OPERATOR(aclnnInplaceScatter)(aclTensor* self, int64_t dim, const aclTensor* index, const aclTensor* source,
                              int64_t reduction, PLANNED) {
  if (reduction != 0) return refuse_reduction();
  return PLAN(self->count(), index->count(), [self = *self, dim, index = *index, source = *source] {
    Cursor from(part_like(source, index));
    along(self, dim, index, [&](char* place) { copy_bytes(place, from.next(), bytes_of(self.type)); });
  });
}

OPERATOR(aclnnInplaceScatterValue)(aclTensor* self, int64_t dim, const aclTensor* index, const aclScalar* value,
                                   int64_t reduction, PLANNED) {
  if (reduction != 0) return refuse_reduction();
  return PLAN(self->count(), index->count(), [self = *self, dim, index = *index, value = value->value] {
    const Element element(value, self.type);
    along(self, dim, index, [&](char* place) { element.store(place); });
  });
}

// The last dimension of `indices` addresses the first ones of `self`. Negative indices are skipped, not wrapped.
OPERATOR(aclnnScatterNdUpdate)(aclTensor* self, const aclTensor* indices, const aclTensor* updates, PLANNED) {
  return PLAN(self->count(), indices->count() / indices->sizes.back(),
              [self = *self, indices = *indices, updates = *updates] {
                const int64_t depth = indices.sizes.back();
                std::vector<int64_t> addressed;
                for (int64_t axis = 0; axis < depth; ++axis) addressed.push_back(axis);
                const auto elements = offsets(self, addressed);
                const auto bytes = static_cast<int64_t>(bytes_of(self.type));
                const auto rows = read_all<int64_t>(indices);
                Cursor from(updates);
                for (size_t i = 0; i < rows.size(); i += static_cast<size_t>(depth)) {
                  char* place = self.begin();
                  bool inside = true;
                  for (int64_t axis = 0; axis < depth; ++axis) {
                    const int64_t row = rows[i + static_cast<size_t>(axis)];
                    inside = inside && row >= 0 && row < self.sizes[axis];
                    place += row * self.strides[axis] * bytes;
                  }
                  for (const int64_t element : elements) {
                    const char* value = from.next();
                    if (inside) copy_bytes(place + element, value, static_cast<size_t>(bytes));
                  }
                }
              });
}

OPERATOR(aclnnInplaceMaskedFillScalar)(aclTensor* self, const aclTensor* mask, const aclScalar* value, PLANNED) {
  return PLAN(self->count(), 0,
              [self = *self, mask = *mask, value = value->value] { fill_masked(self, mask, value); });
}

OPERATOR(aclnnInplaceMaskedFillTensor)(aclTensor* self, const aclTensor* mask, const aclTensor* value, PLANNED) {
  return PLAN(self->count(), 0, [self = *self, mask = *mask, value = *value] { fill_masked(self, mask, value); });
}

OPERATOR(aclnnInplaceMaskedScatter)(aclTensor* self, const aclTensor* mask, const aclTensor* source, PLANNED) {
  return PLAN(self->count(), 0, [self = *self, mask = *mask, source = *source] {
    Cursor from(source);
    where(self, mask, [&](char* place) { copy_bytes(place, from.next(), bytes_of(self.type)); });
  });
}
