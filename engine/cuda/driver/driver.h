// The CUDA driver as this program knows it: types, constants and one list of functions, all checked against NVIDIA's header by `make cuda-check`
// (PB_CHECK_HEADERS). The library is opened when the program runs; nothing of CUDA is needed to build it.
#ifndef PB_DRIVER_H
#define PB_DRIVER_H

#include <stddef.h>
#include <stdint.h>

#ifdef PB_CHECK_HEADERS
#include <cuda.h>
#else
typedef int CUresult;
typedef int CUdevice;
typedef unsigned long long CUdeviceptr;
typedef int CUdevice_attribute;
typedef int CUfunction_attribute;
typedef struct CUctx_st *CUcontext;
typedef struct CUmod_st *CUmodule;
typedef struct CUfunc_st *CUfunction;
typedef struct CUstream_st *CUstream;
typedef struct CUevent_st *CUevent;
typedef struct CUgraph_st *CUgraph;
typedef struct CUgraphExec_st *CUgraphExec;
typedef struct CUgraphNode_st *CUgraphNode;
typedef int CUstreamCaptureMode;
typedef int CUgraphExecUpdateResult;
typedef struct {
  CUgraphExecUpdateResult result;
  CUgraphNode errorNode, errorFromNode;
} CUgraphExecUpdateResultInfo;
#endif

// Constants of cuda.h: name here, name there, value.
#define PB_CONSTANTS(X) \
  X(PB_SUCCESS, CUDA_SUCCESS, 0) \
  X(PB_INVALID_VALUE, CUDA_ERROR_INVALID_VALUE, 1) \
  X(PB_OUT_OF_MEMORY, CUDA_ERROR_OUT_OF_MEMORY, 2) \
  X(PB_NOT_INITIALIZED, CUDA_ERROR_NOT_INITIALIZED, 3) \
  X(PB_NO_DEVICE, CUDA_ERROR_NO_DEVICE, 100) \
  X(PB_INVALID_DEVICE, CUDA_ERROR_INVALID_DEVICE, 101) \
  X(PB_INVALID_IMAGE, CUDA_ERROR_INVALID_IMAGE, 200) \
  X(PB_INVALID_CONTEXT, CUDA_ERROR_INVALID_CONTEXT, 201) \
  X(PB_NO_BINARY, CUDA_ERROR_NO_BINARY_FOR_GPU, 209) \
  X(PB_PEER_UNSUPPORTED, CUDA_ERROR_PEER_ACCESS_UNSUPPORTED, 217) \
  X(PB_INVALID_PTX, CUDA_ERROR_INVALID_PTX, 218) \
  X(PB_NO_COMPILER, CUDA_ERROR_JIT_COMPILER_NOT_FOUND, 221) \
  X(PB_UNSUPPORTED_PTX, CUDA_ERROR_UNSUPPORTED_PTX_VERSION, 222) \
  X(PB_COMPILER_OFF, CUDA_ERROR_JIT_COMPILATION_DISABLED, 223) \
  X(PB_INVALID_HANDLE, CUDA_ERROR_INVALID_HANDLE, 400) \
  X(PB_NOT_FOUND, CUDA_ERROR_NOT_FOUND, 500) \
  X(PB_NOT_READY, CUDA_ERROR_NOT_READY, 600) \
  X(PB_ILLEGAL_ADDRESS, CUDA_ERROR_ILLEGAL_ADDRESS, 700) \
  X(PB_OUT_OF_RESOURCES, CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES, 701) \
  X(PB_PEER_ENABLED, CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED, 704) \
  X(PB_TOO_MANY_PEERS, CUDA_ERROR_TOO_MANY_PEERS, 711) \
  X(PB_LAUNCH_FAILED, CUDA_ERROR_LAUNCH_FAILED, 719) \
  X(PB_CAPTURE_UNSUPPORTED, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, 900) \
  X(PB_CAPTURE_INVALIDATED, CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, 901) \
  X(PB_CAPTURE_MERGE, CUDA_ERROR_STREAM_CAPTURE_MERGE, 902) \
  X(PB_CAPTURE_UNMATCHED, CUDA_ERROR_STREAM_CAPTURE_UNMATCHED, 903) \
  X(PB_CAPTURE_UNJOINED, CUDA_ERROR_STREAM_CAPTURE_UNJOINED, 904) \
  X(PB_CAPTURE_ISOLATION, CUDA_ERROR_STREAM_CAPTURE_ISOLATION, 905) \
  X(PB_CAPTURED_EVENT, CUDA_ERROR_CAPTURED_EVENT, 907) \
  X(PB_CAPTURE_WRONG_THREAD, CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD, 908) \
  X(PB_GRAPH_UPDATE_FAILURE, CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE, 910) \
  X(PB_UNKNOWN, CUDA_ERROR_UNKNOWN, 999) \
  X(PB_ATTR_MULTIPROCESSORS, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, 16) \
  X(PB_ATTR_MAJOR, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, 75) \
  X(PB_ATTR_MINOR, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, 76) \
  X(PB_ATTR_SHARED_OPTIN, CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN, 97) \
  X(PB_FUNC_MAX_THREADS, CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK, 0) \
  X(PB_FUNC_LOCAL_BYTES, CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES, 3) \
  X(PB_FUNC_REGISTERS, CU_FUNC_ATTRIBUTE_NUM_REGS, 4) \
  X(PB_FUNC_MAX_SHARED, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, 8) \
  X(PB_STREAM_NON_BLOCKING, CU_STREAM_NON_BLOCKING, 1) \
  X(PB_CAPTURE_GLOBAL, CU_STREAM_CAPTURE_MODE_GLOBAL, 0) \
  X(PB_CAPTURE_RELAXED, CU_STREAM_CAPTURE_MODE_RELAXED, 2) \
  X(PB_UPDATE_SUCCESS, CU_GRAPH_EXEC_UPDATE_SUCCESS, 0) \
  X(PB_UPDATE_TOPOLOGY, CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED, 2) \
  X(PB_WRITE_DEFAULT, CU_STREAM_WRITE_VALUE_DEFAULT, 0) \
  X(PB_EVENT_DEFAULT, CU_EVENT_DEFAULT, 0) \
  X(PB_EVENT_NO_TIMING, CU_EVENT_DISABLE_TIMING, 2)

#define PB_CONSTANT(name, theirs, value) name = value,
enum { PB_CONSTANTS(PB_CONSTANT) };
#undef PB_CONSTANT

// The functions: name as the library exports it, parameters. All return CUresult.
#define PB_FUNCTIONS(X) \
  X(cuInit, (unsigned)) \
  X(cuDriverGetVersion, (int *)) \
  X(cuGetErrorName, (CUresult, const char **)) \
  X(cuGetErrorString, (CUresult, const char **)) \
  X(cuDeviceGetCount, (int *)) \
  X(cuDeviceGet, (CUdevice *, int)) \
  X(cuDeviceGetName, (char *, int, CUdevice)) \
  X(cuDeviceGetAttribute, (int *, CUdevice_attribute, CUdevice)) \
  X(cuDeviceTotalMem_v2, (size_t *, CUdevice)) \
  X(cuDeviceCanAccessPeer, (int *, CUdevice, CUdevice)) \
  X(cuDevicePrimaryCtxRetain, (CUcontext *, CUdevice)) \
  X(cuDevicePrimaryCtxRelease_v2, (CUdevice)) \
  X(cuCtxSetCurrent, (CUcontext)) \
  X(cuCtxSynchronize, (void)) \
  X(cuCtxEnablePeerAccess, (CUcontext, unsigned)) \
  X(cuMemGetInfo_v2, (size_t *, size_t *)) \
  X(cuMemAlloc_v2, (CUdeviceptr *, size_t)) \
  X(cuMemFree_v2, (CUdeviceptr)) \
  X(cuMemHostAlloc, (void **, size_t, unsigned)) \
  X(cuMemFreeHost, (void *)) \
  X(cuMemcpyHtoDAsync_v2, (CUdeviceptr, const void *, size_t, CUstream)) \
  X(cuMemcpyDtoHAsync_v2, (void *, CUdeviceptr, size_t, CUstream)) \
  X(cuMemcpyDtoDAsync_v2, (CUdeviceptr, CUdeviceptr, size_t, CUstream)) \
  X(cuMemcpyPeerAsync, (CUdeviceptr, CUcontext, CUdeviceptr, CUcontext, size_t, CUstream)) \
  X(cuMemsetD8Async, (CUdeviceptr, unsigned char, size_t, CUstream)) \
  X(cuStreamCreateWithPriority, (CUstream *, unsigned, int)) \
  X(cuStreamDestroy_v2, (CUstream)) \
  X(cuStreamSynchronize, (CUstream)) \
  X(cuStreamWaitEvent, (CUstream, CUevent, unsigned)) \
  X(cuStreamWriteValue32_v2, (CUstream, CUdeviceptr, uint32_t, unsigned)) \
  X(cuStreamBeginCapture_v2, (CUstream, CUstreamCaptureMode)) \
  X(cuStreamEndCapture, (CUstream, CUgraph *)) \
  X(cuGraphGetNodes, (CUgraph, CUgraphNode *, size_t *)) \
  X(cuGraphInstantiateWithFlags, (CUgraphExec *, CUgraph, unsigned long long)) \
  X(cuGraphExecUpdate_v2, (CUgraphExec, CUgraph, CUgraphExecUpdateResultInfo *)) \
  X(cuGraphLaunch, (CUgraphExec, CUstream)) \
  X(cuGraphDestroy, (CUgraph)) \
  X(cuGraphExecDestroy, (CUgraphExec)) \
  X(cuEventCreate, (CUevent *, unsigned)) \
  X(cuEventDestroy_v2, (CUevent)) \
  X(cuEventRecord, (CUevent, CUstream)) \
  X(cuEventQuery, (CUevent)) \
  X(cuEventSynchronize, (CUevent)) \
  X(cuEventElapsedTime, (float *, CUevent, CUevent)) \
  X(cuModuleLoadData, (CUmodule *, const void *)) \
  X(cuModuleUnload, (CUmodule)) \
  X(cuModuleGetFunction, (CUfunction *, CUmodule, const char *)) \
  X(cuFuncSetAttribute, (CUfunction, CUfunction_attribute, int)) \
  X(cuFuncGetAttribute, (int *, CUfunction_attribute, CUfunction)) \
  X(cuLaunchKernel, (CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, CUstream, void **, void **))

#ifdef PB_CHECK_HEADERS
#define PB_SAME(name, params) \
  _Static_assert(__builtin_types_compatible_p(CUresult(*) params, __typeof__(&name)), #name);
PB_FUNCTIONS(PB_SAME)
#define PB_SAME_VALUE(name, theirs, value) _Static_assert((int)theirs == value, #theirs);
PB_CONSTANTS(PB_SAME_VALUE)
_Static_assert(sizeof(CUgraphExecUpdateResultInfo) == 24 && offsetof(CUgraphExecUpdateResultInfo, errorNode) == 8, "result of an update");
#endif

#endif
