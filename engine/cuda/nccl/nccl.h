// NCCL as this program knows it: types, constants and one list of functions, all checked against NVIDIA's header by `make cuda-check` (PB_CHECK_NCCL). The
// library is opened when the program runs.
#ifndef PB_NCCL_H
#define PB_NCCL_H

#include "driver.h"

#include <limits.h>

// What communicators are made with, as NCCL 2.17 has it; newer ones read as much of it as its size says.
typedef struct {
  size_t size;
  unsigned magic, version;
  int blocking, cgaClusterSize, minCTAs, maxCTAs;
  const char *netName;
  int splitShare;
} pb_nccl_config;
#define PB_NCCL_FIELDS(X) X(size) X(magic) X(version) X(blocking) X(cgaClusterSize) X(minCTAs) X(maxCTAs) X(netName) X(splitShare)

#ifdef PB_CHECK_NCCL
#include <nccl.h>
#else
typedef int ncclResult_t;
typedef int ncclDataType_t;
typedef int ncclRedOp_t;
typedef struct ncclComm *ncclComm_t;
typedef struct { char internal[128]; } ncclUniqueId;
typedef pb_nccl_config ncclConfig_t;
#endif

// Constants of nccl.h: name here, name there, value.
#define PB_NCCL_CONSTANTS(X) \
  X(PB_NCCL_SUCCESS, ncclSuccess, 0) \
  X(PB_NCCL_SYSTEM, ncclSystemError, 2) \
  X(PB_NCCL_INVALID_ARGUMENT, ncclInvalidArgument, 4) \
  X(PB_NCCL_INVALID_USAGE, ncclInvalidUsage, 5) \
  X(PB_NCCL_REMOTE, ncclRemoteError, 6) \
  X(PB_NCCL_IN_PROGRESS, ncclInProgress, 7) \
  X(PB_NCCL_SUM, ncclSum, 0) \
  X(PB_NCCL_U8, ncclUint8, 1) \
  X(PB_NCCL_F32, ncclFloat32, 7) \
  X(PB_NCCL_F64, ncclFloat64, 8) \
  X(PB_NCCL_BF16, ncclBfloat16, 9) \
  X(PB_NCCL_UNDEFINED, NCCL_CONFIG_UNDEF_INT, INT_MIN)

#define PB_CONSTANT(name, theirs, value) name = value,
enum { PB_NCCL_CONSTANTS(PB_CONSTANT) };
#undef PB_CONSTANT

// Not in the header by name: the word that a configuration begins with, and the version that has its form.
#define PB_NCCL_MAGIC 0xcafebeefu
#define PB_NCCL_CONFIG_VERSION 21700

// The functions: result, name as the library exports it, parameters.
#define PB_NCCL_FUNCTIONS(X) \
  X(ncclResult_t, ncclGetVersion, (int *)) \
  X(ncclResult_t, ncclGetUniqueId, (ncclUniqueId *)) \
  X(const char *, ncclGetErrorString, (ncclResult_t)) \
  X(const char *, ncclGetLastError, (ncclComm_t)) \
  X(ncclResult_t, ncclCommInitRankConfig, (ncclComm_t *, int, ncclUniqueId, int, ncclConfig_t *)) \
  X(ncclResult_t, ncclCommGetAsyncError, (ncclComm_t, ncclResult_t *)) \
  X(ncclResult_t, ncclCommFinalize, (ncclComm_t)) \
  X(ncclResult_t, ncclCommDestroy, (ncclComm_t)) \
  X(ncclResult_t, ncclCommAbort, (ncclComm_t)) \
  X(ncclResult_t, ncclGroupStart, (void)) \
  X(ncclResult_t, ncclGroupEnd, (void)) \
  X(ncclResult_t, ncclSend, (const void *, size_t, ncclDataType_t, int, ncclComm_t, CUstream)) \
  X(ncclResult_t, ncclRecv, (void *, size_t, ncclDataType_t, int, ncclComm_t, CUstream)) \
  X(ncclResult_t, ncclAllReduce, (const void *, void *, size_t, ncclDataType_t, ncclRedOp_t, ncclComm_t, CUstream)) \
  X(ncclResult_t, ncclAllGather, (const void *, void *, size_t, ncclDataType_t, ncclComm_t, CUstream)) \
  X(ncclResult_t, ncclReduceScatter, (const void *, void *, size_t, ncclDataType_t, ncclRedOp_t, ncclComm_t, CUstream))

#ifdef PB_CHECK_NCCL
#define PB_SAME_FUNCTION(result, name, params) \
  _Static_assert(__builtin_types_compatible_p(result(*) params, __typeof__(&name)), #name);
PB_NCCL_FUNCTIONS(PB_SAME_FUNCTION)
#define PB_SAME_NCCL(name, theirs, value) _Static_assert((int)theirs == value, #theirs);
PB_NCCL_CONSTANTS(PB_SAME_NCCL)
#define PB_SAME_FIELD(f)                                                                 \
  _Static_assert(offsetof(pb_nccl_config, f) == offsetof(ncclConfig_t, f) &&             \
                     sizeof(((pb_nccl_config *)0)->f) == sizeof(((ncclConfig_t *)0)->f), \
                 #f);
PB_NCCL_FIELDS(PB_SAME_FIELD)
_Static_assert(sizeof(ncclUniqueId) == 128, "ncclUniqueId");
#endif

#endif
