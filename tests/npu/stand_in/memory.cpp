// Device memory, which is the host's, and copies.
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>

#include "call_log.h"
#include "device.h"
#include "script.h"

using stand_in::Device;

namespace {

// torch_npu relies on blocks of the device being aligned like this.
constexpr size_t kAlignment = 512;

// Blocks of one kind of memory, to tell whose a pointer is.
class Blocks {
 public:
  explicit Blocks(size_t limit) : limit_(limit) {}

  bool allocate(void** pointer, size_t size) {
    const std::lock_guard lock(mutex_);
    *pointer = nullptr;
    if (size > limit_ - used_ || posix_memalign(pointer, kAlignment, size == 0 ? kAlignment : size) != 0) return false;
    sizes_[static_cast<char*>(*pointer)] = size;
    used_ += size;
    return true;
  }

  void release(void* pointer) {
    const std::lock_guard lock(mutex_);
    const auto block = sizes_.find(static_cast<char*>(pointer));
    if (block == sizes_.end()) return;
    used_ -= block->second;
    sizes_.erase(block);
    std::free(pointer);
  }

  bool contains(const void* pointer) {
    const std::lock_guard lock(mutex_);
    const auto* address = static_cast<const char*>(pointer);
    auto next = sizes_.upper_bound(const_cast<char*>(address));
    if (next == sizes_.begin()) return false;
    --next;
    return address < next->first + next->second;
  }

  size_t available() {
    const std::lock_guard lock(mutex_);
    return limit_ - used_;
  }

 private:
  const size_t limit_;
  std::mutex mutex_;
  std::map<char*, size_t> sizes_;
  size_t used_ = 0;
};

Blocks& device_memory() {
  static Blocks* const blocks = new Blocks(stand_in::machine().memory);
  return *blocks;
}

Blocks& pinned_memory() {
  static Blocks* const blocks = new Blocks(SIZE_MAX);
  return *blocks;
}

aclError allocate(void** pointer, size_t size) {
  stand_in::log_call("aclrtMalloc");
  if (device_memory().allocate(pointer, size)) return ACL_SUCCESS;
  return stand_in::refuse(ACL_ERROR_RT_MEMORY_ALLOCATION, "out of device memory");
}

const char* direction(aclrtMemcpyKind kind) {
  switch (kind) {
    case ACL_MEMCPY_HOST_TO_HOST:
      return " H2H";
    case ACL_MEMCPY_HOST_TO_DEVICE:
      return " H2D";
    case ACL_MEMCPY_DEVICE_TO_HOST:
      return " D2H";
    case ACL_MEMCPY_DEVICE_TO_DEVICE:
      return " D2D";
    default:
      return "";
  }
}

stand_in::Price copy_price(const char* name, size_t bytes) {
  return stand_in::price({name, static_cast<int64_t>(bytes), 0});
}

}  // namespace

extern "C" {

aclError aclrtMalloc(void** pointer, size_t size, aclrtMemMallocPolicy) { return allocate(pointer, size); }

aclError aclrtMallocAlign32(void** pointer, size_t size, aclrtMemMallocPolicy) { return allocate(pointer, size); }

aclError aclrtFree(void* pointer) {
  stand_in::log_call("aclrtFree");
  device_memory().release(pointer);
  return ACL_SUCCESS;
}

aclError aclrtMallocHost(void** pointer, size_t size) {
  return pinned_memory().allocate(pointer, size) ? ACL_SUCCESS : ACL_ERROR_RT_MEMORY_ALLOCATION;
}

aclError aclrtFreeHost(void* pointer) {
  pinned_memory().release(pointer);
  return ACL_SUCCESS;
}

aclError aclrtGetMemInfo(aclrtMemAttr, size_t* available, size_t* total) {
  *available = device_memory().available();
  *total = stand_in::machine().memory;
  return ACL_SUCCESS;
}

aclError aclrtPointerGetAttributes(const void* pointer, aclrtPtrAttributes* attributes) {
  attributes->location.id = 0;
  attributes->location.type = device_memory().contains(pointer)   ? ACL_MEM_LOCATION_TYPE_DEVICE
                              : pinned_memory().contains(pointer) ? ACL_MEM_LOCATION_TYPE_HOST
                                                                  : ACL_MEM_LOCATION_TYPE_UNREGISTERED;
  attributes->pageSize = 4096;
  return ACL_SUCCESS;
}

aclError aclrtMemcpy(void* to, size_t, const void* from, size_t bytes, aclrtMemcpyKind kind) {
  stand_in::log_call(std::string("aclrtMemcpy") + direction(kind));
  // A blocking copy waits for what was submitted before, so that the order of the program holds.
  const aclError waited = Device::instance().synchronize_all();
  if (waited != ACL_SUCCESS) return waited;
  stand_in::spend(copy_price("aclrtMemcpy", bytes).device);
  std::memmove(to, from, bytes);
  return ACL_SUCCESS;
}

aclError aclrtMemcpyAsync(void* to, size_t, const void* from, size_t bytes, aclrtMemcpyKind kind, aclrtStream stream) {
  stand_in::log_call(std::string("aclrtMemcpyAsync") + direction(kind));
  auto& device = Device::instance();
  device.submit(device.stream(stream),
                {[=](stand_in::Time) { std::memmove(to, from, bytes); }, copy_price("aclrtMemcpyAsync", bytes).device});
  return ACL_SUCCESS;
}

aclError aclrtMemset(void* to, size_t, int32_t value, size_t bytes) {
  stand_in::log_call("aclrtMemset");
  const aclError waited = Device::instance().synchronize_all();
  if (waited != ACL_SUCCESS) return waited;
  std::memset(to, value, bytes);
  return ACL_SUCCESS;
}

aclError aclrtMemsetAsync(void* to, size_t, int32_t value, size_t bytes, aclrtStream stream) {
  stand_in::log_call("aclrtMemsetAsync");
  auto& device = Device::instance();
  device.submit(device.stream(stream),
                {[=](stand_in::Time) { std::memset(to, value, bytes); }, copy_price("aclrtMemsetAsync", bytes).device});
  return ACL_SUCCESS;
}

}  // extern "C"
