// Operators that make one value of many.
#include "operator.h"

using namespace stand_in;

namespace {

// Which elements of a tensor go into which element of the result.
struct Groups {
  std::vector<int64_t> kept;     // offsets, one for each element of the result
  std::vector<int64_t> reduced;  // offsets of a group's members from its first
};

Groups grouped(const Tensor& self, const std::vector<int64_t>& dims) {
  std::vector<int64_t> reduced_axes;
  for (const int64_t dim : dims) reduced_axes.push_back(dimension(self, dim));
  std::vector<int64_t> kept_axes;
  for (int64_t axis = 0; axis < self.rank(); ++axis) {
    // No dimensions named means all.
    const bool reduced =
        dims.empty() || std::find(reduced_axes.begin(), reduced_axes.end(), axis) != reduced_axes.end();
    if (!reduced) kept_axes.push_back(axis);
    if (dims.empty()) reduced_axes.push_back(axis);
  }
  return {offsets(self, reduced_axes), offsets(self, kept_axes)};
}

// out = begin combined by `function` with every member, group by group.
template <class Function>
void reduce(const Tensor& out, const Tensor& self, const std::vector<int64_t>& dims, double begin, Function function) {
  in_common_type({self}, [&](auto zero) {
    using Number = decltype(zero);
    if (dims.empty()) {
      Number total = convert<Number>(begin);
      Cursor cursor(self);
      Number values[2048];
      for (int64_t left = self.count(); left > 0; left -= 2048) {
        const int64_t piece = std::min<int64_t>(left, 2048);
        read(cursor, self.type, values, piece);
        for (int64_t i = 0; i < piece; ++i) total = static_cast<Number>(function(total, values[i]));
      }
      write_all(out, std::vector<Number>{total});
      return;
    }
    const Groups groups = grouped(self, dims);
    std::vector<Number> totals;
    Tensor one{{}, {}, 0, self.type, nullptr, {}};
    for (const int64_t first : groups.kept) {
      Number total = convert<Number>(begin);
      for (const int64_t member : groups.reduced) {
        one.data = self.begin() + first + member;
        total = static_cast<Number>(function(total, read_all<Number>(one)[0]));
      }
      totals.push_back(total);
    }
    write_all(out, totals);
  });
}

const auto sum = [](auto total, auto value) { return total + value; };
const auto any = [](auto total, auto value) { return total != 0 || value != 0; };
const auto all = [](auto total, auto value) { return total != 0 && value != 0; };
const auto largest = [](auto total, auto value) { return std::max(total, value); };
const auto smallest = [](auto total, auto value) { return std::min(total, value); };

// Representable in both types that are computed in, and beyond every value that the tests use.
constexpr double kHuge = 1LL << 62;

// The position of the first best element of each group along one dimension.
template <class Better>
void pick(const Tensor& values_out, const Tensor& positions_out, const Tensor& self, int64_t dim, Better better) {
  in_common_type({self}, [&](auto zero) {
    using Number = decltype(zero);
    const Groups groups = grouped(self, {dim});
    std::vector<Number> values;
    std::vector<int64_t> positions;
    Tensor one{{}, {}, 0, self.type, nullptr, {}};
    for (const int64_t first : groups.kept) {
      Number best{};
      int64_t position = -1;
      for (size_t i = 0; i < groups.reduced.size(); ++i) {
        one.data = self.begin() + first + groups.reduced[i];
        const Number value = read_all<Number>(one)[0];
        if (position >= 0 && !better(value, best)) continue;
        best = value;
        position = static_cast<int64_t>(i);
      }
      values.push_back(best);
      positions.push_back(position);
    }
    if (values_out.data != nullptr) write_all(values_out, values);
    write_all(positions_out, positions);
  });
}

const Tensor no_values;

const auto above = [](auto value, auto best) { return value > best; };
const auto below = [](auto value, auto best) { return value < best; };

}  // namespace

OPERATOR(aclnnReduceSum)(const aclTensor* self, const aclIntArray* dims, bool, aclDataType, aclTensor* out, PLANNED) {
  return PLAN(self->count(), 0,
              [self = *self, dims = dims->values, out = *out] { reduce(out, self, dims, 0, sum); });
}

#define REDUCTION(name, begin, function)                                                                        \
  OPERATOR(name)(const aclTensor* self, const aclIntArray* dims, bool, aclTensor* out, PLANNED) {               \
    return PLAN(self->count(), 0,                                                                               \
                [self = *self, dims = dims->values, out = *out] { reduce(out, self, dims, begin, function); }); \
  }

REDUCTION(aclnnAny, 0, any)
REDUCTION(aclnnAll, 1, all)
REDUCTION(aclnnAmax, -kHuge, largest)
REDUCTION(aclnnAmin, kHuge, smallest)

OPERATOR(aclnnMax)(const aclTensor* self, aclTensor* out, PLANNED) {
  return PLAN(self->count(), 0, [self = *self, out = *out] { reduce(out, self, {}, -kHuge, largest); });
}

OPERATOR(aclnnMin)(const aclTensor* self, aclTensor* out, PLANNED) {
  return PLAN(self->count(), 0, [self = *self, out = *out] { reduce(out, self, {}, kHuge, smallest); });
}

OPERATOR(aclnnMaxDim)(const aclTensor* self, int64_t dim, bool, aclTensor* out, aclTensor* indices, PLANNED) {
  return PLAN(self->count(), 0,
              [self = *self, dim, out = *out, indices = *indices] { pick(out, indices, self, dim, above); });
}

OPERATOR(aclnnMinDim)(const aclTensor* self, int64_t dim, bool, aclTensor* out, aclTensor* indices, PLANNED) {
  return PLAN(self->count(), 0,
              [self = *self, dim, out = *out, indices = *indices] { pick(out, indices, self, dim, below); });
}

OPERATOR(aclnnArgMax)(const aclTensor* self, int64_t dim, bool, aclTensor* indices, PLANNED) {
  return PLAN(self->count(), 0,
              [self = *self, dim, indices = *indices] { pick(no_values, indices, self, dim, above); });
}

OPERATOR(aclnnArgMin)(const aclTensor* self, int64_t dim, bool, aclTensor* indices, PLANNED) {
  return PLAN(self->count(), 0,
              [self = *self, dim, indices = *indices] { pick(no_values, indices, self, dim, below); });
}

// Whether two tensors are the same, as one bool.
OPERATOR(aclnnEqual)(const aclTensor* self, const aclTensor* other, aclTensor* out, PLANNED) {
  return PLAN(self->count(), 0, [self = *self, other = *other, out = *out] {
    bool same = self.sizes == other.sizes;
    in_common_type({self, other}, [&](auto zero) {
      using Number = decltype(zero);
      same = same && read_all<Number>(self) == read_all<Number>(other);
    });
    write_all(out, std::vector<int64_t>{same});
  });
}
