// What torch_npu's libraries link to and the tests have no use for. A call says so and fails.
//
// Declared without arguments, and so without CANN's headers: a C function may be given more than it reads.
#include <cstdio>
#include <cstdlib>
#include <string>

#include "call_log.h"

namespace stand_in {
int refuse(int error, const std::string& message);
}

namespace {

constexpr long kSuccess = 0;
constexpr int kUnsupported = 200006;  // ACL_ERROR_FEATURE_UNSUPPORTED

}  // namespace

#define UNUSED(name)                                                             \
  extern "C" long name() {                                                       \
    stand_in::log_call(#name);                                                   \
    return stand_in::refuse(kUnsupported, #name " is not part of the stand-in"); \
  }

// Profiling. Registration must succeed, and the rest is not called unless it is switched on.
#define IGNORED(name) \
  extern "C" long name() { return kSuccess; }

IGNORED(MsprofRegisterCallback)
IGNORED(MsprofGetHashId)
IGNORED(MsprofReportAdditionalInfo)
IGNORED(MsprofReportApi)
IGNORED(MsprofReportCompactInfo)
IGNORED(MsprofSysCycleTime)
IGNORED(aclmdlInitDump)
IGNORED(aclmdlSetDump)
IGNORED(aclmdlFinalizeDump)
IGNORED(aclrtProcessReport)

// Operators that are compiled where they run: what torch_npu falls back on where CANN has no aclnn operator. That ends
// the process, since torch_npu would carry on with results that were never computed. The descriptors are null until
// then, and nobody reads them.
extern "C" long aclopCompileAndExecute(const char* operator_type) {
  std::fprintf(stderr, "the stand-in for CANN has no aclnn operator for %s\n", operator_type);
  std::abort();
}
extern "C" long aclopCompileAndExecuteV2(const char* operator_type) { return aclopCompileAndExecute(operator_type); }
IGNORED(aclopCreateAttr)
IGNORED(aclopDestroyAttr)
IGNORED(aclopSetAttrBool)
IGNORED(aclopSetAttrDataType)
IGNORED(aclopSetAttrFloat)
IGNORED(aclopSetAttrInt)
IGNORED(aclopSetAttrListBool)
IGNORED(aclopSetAttrListFloat)
IGNORED(aclopSetAttrListInt)
IGNORED(aclopSetAttrListListInt)
IGNORED(aclopSetAttrString)
IGNORED(aclCreateDataBuffer)
IGNORED(aclDestroyDataBuffer)
IGNORED(aclCreateTensorDesc)
IGNORED(aclDestroyTensorDesc)
IGNORED(aclGetTensorDescDimV2)
IGNORED(aclGetTensorDescFormat)
IGNORED(aclGetTensorDescNumDims)
IGNORED(aclGetTensorDescType)
IGNORED(aclSetTensorDescName)
IGNORED(aclSetTensorFormat)
IGNORED(aclSetTensorPlaceMent)
IGNORED(aclSetTensorShape)

// Kernels of one's own, memory in segments, memory shared between processes.
UNUSED(aclrtBinaryGetFunction)
UNUSED(aclrtBinaryLoadFromData)
UNUSED(aclrtGetFunctionAddr)
UNUSED(rtDevBinaryRegister)
UNUSED(rtFunctionRegister)
UNUSED(rtGetC2cCtrlAddr)
UNUSED(rtKernelLaunch)
UNUSED(aclrtReserveMemAddress)
UNUSED(aclrtReleaseMemAddress)
UNUSED(aclrtMallocPhysical)
UNUSED(aclrtFreePhysical)
UNUSED(aclrtMapMem)
UNUSED(aclrtUnmapMem)
UNUSED(aclrtMemExportToShareableHandle)
UNUSED(aclrtMemImportFromShareableHandle)
UNUSED(aclrtMemSetPidToShareableHandle)
