// Operators that compute each element of the result from one element of each operand.
#include <cmath>

#include "operator.h"

using namespace stand_in;

namespace {

// Elements are handled in pieces of this many, which stay in the processor's cache.
constexpr int64_t kPiece = 2048;

// out[i] = function(first[i], second[i]), both broadcast to out and read as Number.
template <class Number, class Function>
void combine_as(const Tensor& out, const Tensor& first, const Tensor& second, Function function) {
  Number left[kPiece];
  Number right[kPiece];
  Number result[kPiece];
  Cursor left_cursor(first, out.sizes);
  Cursor right_cursor(second, out.sizes);
  Cursor out_cursor(out);
  for (int64_t rest = out.count(); rest > 0; rest -= kPiece) {
    const int64_t piece = std::min(rest, kPiece);
    read(left_cursor, first.type, left, piece);
    read(right_cursor, second.type, right, piece);
    for (int64_t i = 0; i < piece; ++i) result[i] = static_cast<Number>(function(left[i], right[i]));
    write(out_cursor, out.type, result, piece);
  }
}

// The same in the type common to both.
template <class Function>
void combine(const Tensor& out, const Tensor& first, const Tensor& second, Function function) {
  in_common_type({first, second},
                 [&](auto zero) { combine_as<decltype(zero)>(out, first, second, function); });
}

template <class Function>
int plan_binary(const char* name, const Tensor& self, const Tensor& other, const Tensor& out, Function function,
                uint64_t* workspace, aclOpExecutor** executor) {
  return plan(
      name, out.count(), 0, [=] { combine(out, self, other, function); }, workspace, executor);
}

// Division by zero is the caller's fault; on integers it must not end the process.
template <class Number>
Number floor_division(Number left, Number right) {
  if constexpr (std::is_integral_v<Number>) {
    if (right == 0) return -1;
    const Number quotient = left / right;
    return quotient * right != left && (left < 0) != (right < 0) ? quotient - 1 : quotient;
  } else {
    return std::floor(left / right);
  }
}

const auto add = [](auto a, auto b) { return a + b; };
const auto subtract = [](auto a, auto b) { return a - b; };
const auto multiply = [](auto a, auto b) { return a * b; };
const auto floor_divide = [](auto a, auto b) { return floor_division(a, b); };
const auto remainder_of = [](auto a, auto b) { return a - floor_division(a, b) * b; };
const auto maximum = [](auto a, auto b) { return std::max(a, b); };
const auto minimum = [](auto a, auto b) { return std::min(a, b); };
const auto equal = [](auto a, auto b) { return a == b; };
const auto different = [](auto a, auto b) { return a != b; };
const auto less = [](auto a, auto b) { return a < b; };
const auto greater = [](auto a, auto b) { return a > b; };
const auto at_most = [](auto a, auto b) { return a <= b; };
const auto at_least = [](auto a, auto b) { return a >= b; };
const auto both = [](auto a, auto b) { return a != 0 && b != 0; };
const auto either = [](auto a, auto b) { return a != 0 || b != 0; };
const auto one_of_two = [](auto a, auto b) { return (a != 0) != (b != 0); };
const auto bits_and = [](auto a, auto b) { return static_cast<int64_t>(a) & static_cast<int64_t>(b); };
const auto bits_or = [](auto a, auto b) { return static_cast<int64_t>(a) | static_cast<int64_t>(b); };
const auto bits_xor = [](auto a, auto b) { return static_cast<int64_t>(a) ^ static_cast<int64_t>(b); };

// The factor of sums, in the type that they are computed in.
double factor_of(const aclScalar* alpha) { return read_all<double>(alpha->value)[0]; }
auto add_times(const aclScalar* alpha) {
  return [factor = factor_of(alpha)](auto a, auto b) { return a + static_cast<decltype(b)>(factor) * b; };
}
auto subtract_times(const aclScalar* alpha) {
  return [factor = factor_of(alpha)](auto a, auto b) { return a - static_cast<decltype(b)>(factor) * b; };
}
auto subtract_from(const aclScalar* alpha) {
  return [factor = factor_of(alpha)](auto a, auto b) { return b - static_cast<decltype(a)>(factor) * a; };
}

}  // namespace

// The right operand is a tensor or a scalar, and the result a tensor of its own or the left operand.
#define BINARY(name, Other, other_value, function)                                                \
  OPERATOR(name)(const aclTensor* self, const Other* other, aclTensor* out, PLANNED) {            \
    return plan_binary(__func__, *self, other_value(other), *out, function, workspace, executor); \
  }
#define INPLACE(name, Other, other_value, function)                                                \
  OPERATOR(name)(aclTensor * self, const Other* other, PLANNED) {                                  \
    return plan_binary(__func__, *self, other_value(other), *self, function, workspace, executor); \
  }
#define SCALED(name, Other, other_value, function)                                                             \
  OPERATOR(name)(const aclTensor* self, const Other* other, const aclScalar* alpha, aclTensor* out, PLANNED) { \
    return plan_binary(__func__, *self, other_value(other), *out, function(alpha), workspace, executor);       \
  }
#define SCALED_INPLACE(name, Other, other_value, function)                                                \
  OPERATOR(name)(aclTensor * self, const Other* other, const aclScalar* alpha, PLANNED) {                 \
    return plan_binary(__func__, *self, other_value(other), *self, function(alpha), workspace, executor); \
  }
#define TENSOR(other) (*(other))
#define SCALAR(other) ((other)->value)

SCALED(aclnnAdd, aclTensor, TENSOR, add_times)
SCALED(aclnnAdds, aclScalar, SCALAR, add_times)
SCALED_INPLACE(aclnnInplaceAdd, aclTensor, TENSOR, add_times)
SCALED_INPLACE(aclnnInplaceAdds, aclScalar, SCALAR, add_times)
SCALED(aclnnSub, aclTensor, TENSOR, subtract_times)
SCALED(aclnnSubs, aclScalar, SCALAR, subtract_times)
SCALED_INPLACE(aclnnInplaceSub, aclTensor, TENSOR, subtract_times)
SCALED_INPLACE(aclnnInplaceSubs, aclScalar, SCALAR, subtract_times)
SCALED(aclnnRsub, aclTensor, TENSOR, subtract_from)
SCALED(aclnnRsubs, aclScalar, SCALAR, subtract_from)

// A scalar on the left.
OPERATOR(aclnnAddV3)(const aclScalar* self, const aclTensor* other, const aclScalar* alpha, aclTensor* out, PLANNED) {
  return plan_binary(__func__, self->value, *other, *out, add_times(alpha), workspace, executor);
}
OPERATOR(aclnnRemainderScalarTensor)(const aclScalar* self, const aclTensor* other, aclTensor* out, PLANNED) {
  return plan_binary(__func__, self->value, *other, *out, remainder_of, workspace, executor);
}

BINARY(aclnnMul, aclTensor, TENSOR, multiply)
BINARY(aclnnMuls, aclScalar, SCALAR, multiply)
INPLACE(aclnnInplaceMul, aclTensor, TENSOR, multiply)
INPLACE(aclnnInplaceMuls, aclScalar, SCALAR, multiply)
BINARY(aclnnFloorDivide, aclTensor, TENSOR, floor_divide)
BINARY(aclnnFloorDivides, aclScalar, SCALAR, floor_divide)
INPLACE(aclnnInplaceFloorDivide, aclTensor, TENSOR, floor_divide)
INPLACE(aclnnInplaceFloorDivides, aclScalar, SCALAR, floor_divide)
BINARY(aclnnRemainderTensorTensor, aclTensor, TENSOR, remainder_of)
BINARY(aclnnRemainderTensorScalar, aclScalar, SCALAR, remainder_of)
INPLACE(aclnnInplaceRemainderTensorTensor, aclTensor, TENSOR, remainder_of)
INPLACE(aclnnInplaceRemainderTensorScalar, aclScalar, SCALAR, remainder_of)
BINARY(aclnnMaximum, aclTensor, TENSOR, maximum)
BINARY(aclnnMinimum, aclTensor, TENSOR, minimum)
BINARY(aclnnClampMin, aclScalar, SCALAR, maximum)
BINARY(aclnnClampMax, aclScalar, SCALAR, minimum)

// Either bound may be missing.
OPERATOR(aclnnClamp)(const aclTensor* self, const aclScalar* low, const aclScalar* high, aclTensor* out, PLANNED) {
  // In the place of a missing bound stands the value that it would be compared with.
  const Tensor lower = low == nullptr ? *self : low->value;
  const Tensor upper = high == nullptr ? *out : high->value;
  return PLAN(out->count(), 0, [self = *self, lower, upper, out = *out] {
    combine(out, self, lower, maximum);
    combine(out, out, upper, minimum);
  });
}

BINARY(aclnnEqTensor, aclTensor, TENSOR, equal)
BINARY(aclnnEqScalar, aclScalar, SCALAR, equal)
BINARY(aclnnNeTensor, aclTensor, TENSOR, different)
BINARY(aclnnNeScalar, aclScalar, SCALAR, different)
BINARY(aclnnLtTensor, aclTensor, TENSOR, less)
BINARY(aclnnLtScalar, aclScalar, SCALAR, less)
BINARY(aclnnGtTensor, aclTensor, TENSOR, greater)
BINARY(aclnnGtScalar, aclScalar, SCALAR, greater)
BINARY(aclnnLeTensor, aclTensor, TENSOR, at_most)
BINARY(aclnnLeScalar, aclScalar, SCALAR, at_most)
BINARY(aclnnGeTensor, aclTensor, TENSOR, at_least)
BINARY(aclnnGeScalar, aclScalar, SCALAR, at_least)

BINARY(aclnnLogicalAnd, aclTensor, TENSOR, both)
INPLACE(aclnnInplaceLogicalAnd, aclTensor, TENSOR, both)
BINARY(aclnnLogicalOr, aclTensor, TENSOR, either)
INPLACE(aclnnInplaceLogicalOr, aclTensor, TENSOR, either)
BINARY(aclnnLogicalXor, aclTensor, TENSOR, one_of_two)
BINARY(aclnnBitwiseAndTensor, aclTensor, TENSOR, bits_and)
BINARY(aclnnBitwiseAndScalar, aclScalar, SCALAR, bits_and)
INPLACE(aclnnInplaceBitwiseAndTensor, aclTensor, TENSOR, bits_and)
INPLACE(aclnnInplaceBitwiseAndScalar, aclScalar, SCALAR, bits_and)
BINARY(aclnnBitwiseOrTensor, aclTensor, TENSOR, bits_or)
BINARY(aclnnBitwiseOrScalar, aclScalar, SCALAR, bits_or)
INPLACE(aclnnInplaceBitwiseOrTensor, aclTensor, TENSOR, bits_or)
INPLACE(aclnnInplaceBitwiseOrScalar, aclScalar, SCALAR, bits_or)
BINARY(aclnnBitwiseXorTensor, aclTensor, TENSOR, bits_xor)

// Division: of real numbers (0), towards zero (1), towards minus infinity (2).
static int plan_division(const char* name, const Tensor& self, const Tensor& other, int mode, const Tensor& out,
                         uint64_t* workspace, aclOpExecutor** executor) {
  if (mode == 2) return plan_binary(name, self, other, out, floor_divide, workspace, executor);
  return plan(
      name, out.count(), 0,
      [=] {
        combine_as<double>(out, self, other,
                           [mode](double a, double b) { return mode == 1 ? std::trunc(a / b) : a / b; });
      },
      workspace, executor);
}

OPERATOR(aclnnDiv)(const aclTensor* self, const aclTensor* other, aclTensor* out, PLANNED) {
  return plan_division(__func__, *self, *other, 0, *out, workspace, executor);
}
OPERATOR(aclnnDivs)(const aclTensor* self, const aclScalar* other, aclTensor* out, PLANNED) {
  return plan_division(__func__, *self, other->value, 0, *out, workspace, executor);
}
OPERATOR(aclnnDivMod)(const aclTensor* self, const aclTensor* other, int mode, aclTensor* out, PLANNED) {
  return plan_division(__func__, *self, *other, mode, *out, workspace, executor);
}
OPERATOR(aclnnDivMods)(const aclTensor* self, const aclScalar* other, int mode, aclTensor* out, PLANNED) {
  return plan_division(__func__, *self, other->value, mode, *out, workspace, executor);
}

// One operand: the other is passed twice, and ignored.
#define UNARY(name, function)                                                        \
  OPERATOR(name)(const aclTensor* self, aclTensor* out, PLANNED) {                   \
    return plan_binary(__func__, *self, *self, *out, function, workspace, executor); \
  }

UNARY(aclnnLogicalNot, [](auto a, auto) { return a == 0; })
UNARY(aclnnNeg, [](auto a, auto) { return -a; })
UNARY(aclnnAbs, [](auto a, auto) { return a < 0 ? -a : a; })

OPERATOR(aclnnInplaceLogicalNot)(aclTensor* self, PLANNED) {
  return plan_binary(
      __func__, *self, *self, *self, [](auto a, auto) { return a == 0; }, workspace, executor);
}

OPERATOR(aclnnBitwiseNot)(const aclTensor* self, aclTensor* out, PLANNED) {
  const bool logical = self->type == ACL_BOOL;
  return plan_binary(
      __func__, *self, *self, *out,
      [logical](auto a, auto) {
        const auto bits = static_cast<int64_t>(a);
        return logical ? static_cast<int64_t>(bits == 0) : ~bits;
      },
      workspace, executor);
}

OPERATOR(aclnnSWhere)(const aclTensor* condition, const aclTensor* self, const aclTensor* other, aclTensor* out,
                      PLANNED) {
  return PLAN(out->count(), 0, [condition = *condition, self = *self, other = *other, out = *out] {
    in_common_type({self, other}, [&](auto zero) {
      using Number = decltype(zero);
      const auto chosen = read_all<int64_t>(condition, out.sizes);
      auto values = read_all<Number>(other, out.sizes);
      const auto preferred = read_all<Number>(self, out.sizes);
      for (size_t i = 0; i < values.size(); ++i) {
        if (chosen[i] != 0) values[i] = preferred[i];
      }
      write_all(out, values);
    });
  });
}
