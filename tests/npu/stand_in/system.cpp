// What CANN says about itself and the machine: versions, devices, settings, the last error.
#include <unistd.h>

#include <cstring>

#include "call_log.h"
#include "device.h"
#include "script.h"

namespace {

// Ends in -fake, so that no profile made here is ever taken for a real one; torch_npu reads the numbers.
constexpr const char* kVersion = "8.5.0-fake";
// As on an Ascend 910B3.
constexpr int64_t kCubeCores = 20;
constexpr int64_t kVectorCores = 40;
constexpr int64_t kCacheBytes = 192LL << 20;

thread_local int32_t current_device = -1;
// torch_npu compares contexts, and looks into none.
int contexts[64];

std::mutex error_mutex;
std::string last_error;

}  // namespace

aclError stand_in::refuse(aclError error, const std::string& message) {
  const std::lock_guard lock(error_mutex);
  last_error = message;
  return error;
}

extern "C" {

aclError aclInit(const char*) { return ACL_SUCCESS; }
aclError aclFinalize() { return ACL_SUCCESS; }

const char* aclGetRecentErrMsg() {
  // A copy of the thread's own, for the caller to read in peace.
  static thread_local std::string message;
  const std::lock_guard lock(error_mutex);
  message = last_error;
  return message.empty() ? nullptr : message.c_str();
}

aclError aclsysGetCANNVersion(aclCANNPackageName, aclCANNPackageVersion* version) {
  std::memset(version, 0, sizeof *version);
  std::strcpy(version->version, kVersion);
  return ACL_SUCCESS;
}

aclError aclsysGetVersionStr(char*, char* version) {
  std::strcpy(version, kVersion);
  return ACL_SUCCESS;
}

const char* aclrtGetSocName() { return stand_in::machine().soc.c_str(); }

aclError aclrtGetDeviceCount(uint32_t* count) {
  *count = stand_in::machine().devices;
  return ACL_SUCCESS;
}

aclError aclrtSetDevice(int32_t device) {
  if (device < 0 || static_cast<uint32_t>(device) >= stand_in::machine().devices) {
    return stand_in::refuse(ACL_ERROR_RT_INVALID_DEVICEID, "there is no such device");
  }
  current_device = device;
  return ACL_SUCCESS;
}

aclError aclrtGetDevice(int32_t* device) {
  *device = current_device;
  return current_device < 0 ? ACL_ERROR_RT_CONTEXT_NULL : ACL_SUCCESS;
}

aclError aclrtResetDevice(int32_t) { return ACL_SUCCESS; }

aclError aclrtGetCurrentContext(aclrtContext* context) {
  if (current_device < 0) return ACL_ERROR_RT_CONTEXT_NULL;
  *context = &contexts[current_device];
  return ACL_SUCCESS;
}

aclError aclrtSetCurrentContext(aclrtContext context) {
  current_device = static_cast<int32_t>(static_cast<int*>(context) - contexts);
  return ACL_SUCCESS;
}

aclError aclrtGetPrimaryCtxState(int32_t, uint32_t* flags, int32_t* active) {
  if (flags != nullptr) *flags = 0;
  if (active != nullptr) *active = 1;
  return ACL_SUCCESS;
}

aclError aclrtGetDeviceInfo(uint32_t, aclrtDevAttr attribute, int64_t* value) {
  switch (attribute) {
    case ACL_DEV_ATTR_AICPU_CORE_NUM:
      *value = 1;
      break;
    case ACL_DEV_ATTR_VECTOR_CORE_NUM:
      *value = kVectorCores;
      break;
    case ACL_DEV_ATTR_TOTAL_GLOBAL_MEM_SIZE:
      *value = static_cast<int64_t>(stand_in::machine().memory);
      break;
    case ACL_DEV_ATTR_L2_CACHE_SIZE:
      *value = kCacheBytes;
      break;
    default:
      *value = kCubeCores;
  }
  return ACL_SUCCESS;
}

aclError aclGetDeviceCapability(uint32_t, aclDeviceInfo info, int64_t* value) {
  switch (info) {
    case ACL_DEVICE_INFO_AI_CORE_NUM:
      *value = kCubeCores;
      break;
    case ACL_DEVICE_INFO_VECTOR_CORE_NUM:
      *value = kVectorCores;
      break;
    default:
      *value = kCacheBytes;
  }
  return ACL_SUCCESS;
}

aclError aclrtDeviceCanAccessPeer(int32_t* can, int32_t, int32_t) {
  *can = 0;
  return ACL_SUCCESS;
}

aclError aclrtDeviceEnablePeerAccess(int32_t, uint32_t) { return ACL_SUCCESS; }

aclError aclrtDeviceGetBareTgid(int32_t* pid) {
  *pid = getpid();
  return ACL_SUCCESS;
}

// CANN's own log; its lines are of no use here.
void aclAppLog(aclLogLevel, const char*, const char*, uint32_t, const char*, ...) {}

}  // extern "C"
