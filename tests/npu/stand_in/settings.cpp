// Settings that torch_npu makes when it starts. None of them changes what the stand-in does.
#include <acl/acl.h>
#include <acl/acl_op_compiler.h>

#include <cstring>

extern "C" {

aclError aclSetCompileopt(aclCompileOpt, const char*) { return ACL_SUCCESS; }

// The operator compiler is off: every operator here is ready made.
size_t aclGetCompileoptSize(aclCompileOpt) { return sizeof "disable"; }

aclError aclGetCompileopt(aclCompileOpt, char* value, size_t) {
  std::strcpy(value, "disable");
  return ACL_SUCCESS;
}

aclError aclopSetCompileFlag(aclOpCompileFlag) { return ACL_SUCCESS; }

// Deterministic computation among them, which is asked for before every operator.
aclError aclrtGetSysParamOpt(aclSysParamOpt, int64_t* value) {
  *value = 0;
  return ACL_SUCCESS;
}

aclError aclrtSetSysParamOpt(aclSysParamOpt, int64_t) { return ACL_SUCCESS; }

aclError aclrtCtxSetSysParamOpt(aclSysParamOpt, int64_t) { return ACL_SUCCESS; }

aclError aclrtSetDeviceSatMode(aclrtFloatOverflowMode) { return ACL_SUCCESS; }

aclError aclrtSetOpExecuteTimeOut(uint32_t) { return ACL_SUCCESS; }

aclError aclrtSetOpWaitTimeout(uint32_t) { return ACL_SUCCESS; }

aclError aclrtSetStreamFailureMode(aclrtStream, uint64_t) { return ACL_SUCCESS; }

aclError aclrtSetStreamAttribute(aclrtStream, aclrtStreamAttr, aclrtStreamAttrValue*) { return ACL_SUCCESS; }

aclError aclrtSetStreamOverflowSwitch(aclrtStream, uint32_t) { return ACL_SUCCESS; }

aclError aclrtGetStreamOverflowSwitch(aclrtStream, uint32_t* flag) {
  *flag = 0;
  return ACL_SUCCESS;
}

aclError aclrtPeekAtLastError(aclrtLastErrLevel) { return ACL_SUCCESS; }

aclError aclrtGetLastError(aclrtLastErrLevel) { return ACL_SUCCESS; }

}  // extern "C"
