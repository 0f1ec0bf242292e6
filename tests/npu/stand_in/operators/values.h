// Reading and writing tensors of any type and layout as int64 or double.
#pragma once

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <vector>

#include "tensor.h"

namespace stand_in {

// bfloat16, which C++17 does not know.
struct BFloat16 {
  uint16_t bits = 0;

  BFloat16() = default;
  explicit BFloat16(float value) {
    uint32_t wide = 0;
    std::memcpy(&wide, &value, sizeof wide);
    bits = static_cast<uint16_t>((wide + 0x7fff + ((wide >> 16) & 1)) >> 16);  // to the nearest, ties to even
  }
  explicit operator double() const {
    const uint32_t wide = static_cast<uint32_t>(bits) << 16;
    float value = 0;
    std::memcpy(&value, &wide, sizeof value);
    return value;
  }
  explicit operator int64_t() const { return static_cast<int64_t>(static_cast<double>(*this)); }
};

// Calls `function` with a zero of the C++ type behind `type`.
template <class Function>
auto dispatch(aclDataType type, Function function) {
  switch (type) {
    case ACL_BOOL:
      return function(bool{});
    case ACL_INT8:
      return function(int8_t{});
    case ACL_UINT8:
      return function(uint8_t{});
    case ACL_INT16:
      return function(int16_t{});
    case ACL_INT32:
      return function(int32_t{});
    case ACL_INT64:
      return function(int64_t{});
    case ACL_BF16:
      return function(BFloat16{});
    case ACL_FLOAT:
      return function(float{});
    case ACL_DOUBLE:
      return function(double{});
    default:
      throw std::invalid_argument("the stand-in does not know data type " + std::to_string(type));
  }
}

template <class To, class From>
To convert(From value) {
  if constexpr (std::is_same_v<To, BFloat16>) {
    return BFloat16(static_cast<float>(value));
  } else if constexpr (std::is_same_v<To, bool>) {
    return value != From{};
  } else {
    return static_cast<To>(value);
  }
}

// Goes through a tensor's elements, broadcast to a shape, in order.
class Cursor {
 public:
  struct Run {
    char* at;
    int64_t step;  // bytes from one element to the next
    int64_t count;
  };

  Cursor(const Tensor& tensor, const Sizes& shape) : at_(tensor.begin()) {
    const auto bytes = static_cast<int64_t>(bytes_of(tensor.type));
    for (size_t back = 1; back <= shape.size(); ++back) {
      const int64_t size = shape[shape.size() - back];
      const bool own = back <= tensor.sizes.size() && tensor.sizes[tensor.sizes.size() - back] != 1;
      const int64_t step = own ? tensor.strides[tensor.strides.size() - back] * bytes : 0;
      if (!axes_.empty() && axes_.back().step * axes_.back().size == step) {
        // One longer dimension: contiguous tensors become a single run.
        axes_.back().size *= size;
      } else if (size != 1) {
        axes_.push_back({size, step, 0});
      }
    }
    if (axes_.empty()) axes_.push_back({1, bytes, 0});
  }

  explicit Cursor(const Tensor& tensor) : Cursor(tensor, tensor.sizes) {}

  // The next elements that lie at one distance, at most `limit`. The caller knows when to stop.
  Run next(int64_t limit) {
    Axis& inner = axes_.front();
    const Run run{at_, inner.step, std::min(limit, inner.size - inner.index)};
    at_ += run.step * run.count;
    inner.index += run.count;
    for (size_t i = 0; axes_[i].index == axes_[i].size; ++i) {
      at_ -= axes_[i].step * axes_[i].size;
      axes_[i].index = 0;
      if (i + 1 == axes_.size()) break;
      at_ += axes_[i + 1].step;
      ++axes_[i + 1].index;
    }
    return run;
  }

  char* next() { return next(1).at; }

 private:
  struct Axis {
    int64_t size;
    int64_t step;
    int64_t index;
  };
  std::vector<Axis> axes_;  // the innermost first
  char* at_;
};

// Reads the next `count` elements into `values`; Number is int64_t or double.
// Out of line: it would else be compiled once for each operator.
template <class Number>
[[gnu::noinline]] void read(Cursor& cursor, aclDataType type, Number* values, int64_t count) {
  dispatch(type, [&](auto zero) {
    using T = decltype(zero);
    for (int64_t done = 0; done < count;) {
      const Cursor::Run run = cursor.next(count - done);
      if (run.step == static_cast<int64_t>(sizeof(T))) {
        // A loop over an array is one that the compiler vectorizes: whole tables are read here.
        const T* array = reinterpret_cast<const T*>(run.at);
        for (int64_t i = 0; i < run.count; ++i) values[done + i] = convert<Number>(array[i]);
      } else {
        for (int64_t i = 0; i < run.count; ++i) {
          values[done + i] = convert<Number>(*reinterpret_cast<const T*>(run.at + i * run.step));
        }
      }
      done += run.count;
    }
  });
}

template <class Number>
[[gnu::noinline]] void write(Cursor& cursor, aclDataType type, const Number* values, int64_t count) {
  dispatch(type, [&](auto zero) {
    using T = decltype(zero);
    for (int64_t done = 0; done < count;) {
      const Cursor::Run run = cursor.next(count - done);
      if (run.step == static_cast<int64_t>(sizeof(T))) {
        T* array = reinterpret_cast<T*>(run.at);
        for (int64_t i = 0; i < run.count; ++i) array[i] = convert<T>(values[done + i]);
      } else {
        for (int64_t i = 0; i < run.count; ++i) {
          *reinterpret_cast<T*>(run.at + i * run.step) = convert<T>(values[done + i]);
        }
      }
      done += run.count;
    }
  });
}

template <class Number>
std::vector<Number> read_all(const Tensor& tensor, const Sizes& shape) {
  std::vector<Number> values(static_cast<size_t>(count(shape)));
  Cursor cursor(tensor, shape);
  read(cursor, tensor.type, values.data(), static_cast<int64_t>(values.size()));
  return values;
}

template <class Number>
std::vector<Number> read_all(const Tensor& tensor) {
  return read_all<Number>(tensor, tensor.sizes);
}

template <class Number>
void write_all(const Tensor& tensor, const std::vector<Number>& values) {
  Cursor cursor(tensor);
  write(cursor, tensor.type, values.data(), static_cast<int64_t>(values.size()));
}

// Calls `function` with a zero of the type to compute in: double if any operand is real.
template <class Function>
void in_common_type(const std::vector<Tensor>& operands, Function function) {
  const bool real = std::any_of(operands.begin(), operands.end(), [](const auto& one) { return is_real(one.type); });
  if (real) {
    function(double{});
  } else {
    function(int64_t{});
  }
}

// Copies one element; sizes that the compiler knows make one instruction each.
inline void copy_bytes(char* to, const char* from, size_t bytes) {
  switch (bytes) {
    case 8:
      std::memcpy(to, from, 8);
      break;
    case 4:
      std::memcpy(to, from, 4);
      break;
    case 1:
      *to = *from;
      break;
    default:
      std::memcpy(to, from, bytes);
  }
}

// A value as the bytes of one element of another type.
class Element {
 public:
  Element(const Tensor& scalar, aclDataType type) : bytes_(bytes_of(type)) {
    Tensor one{{}, {}, 0, type, raw_, {}};
    in_common_type({scalar}, [&](auto zero) { write_all(one, read_all<decltype(zero)>(scalar, {})); });
  }

  void store(char* at) const { copy_bytes(at, raw_, bytes_); }

  void store(const Cursor::Run& run) const {
    if (bytes_ == sizeof(int64_t) && run.step == sizeof(int64_t)) {
      int64_t value = 0;
      std::memcpy(&value, raw_, sizeof value);
      std::fill_n(reinterpret_cast<int64_t*>(run.at), run.count, value);
    } else {
      for (int64_t i = 0; i < run.count; ++i) store(run.at + i * run.step);
    }
  }

 private:
  char raw_[8] = {};
  size_t bytes_;
};

}  // namespace stand_in
