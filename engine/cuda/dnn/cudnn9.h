// cuDNN's backend as this program knows it: types, constants and one list of functions, all checked against NVIDIA's headers by `make cuda-check`
// (PB_CHECK_HEADERS). The library is opened when the program runs.
#ifndef PB_CUDNN9_H
#define PB_CUDNN9_H

#include "driver.h"

#ifdef PB_CHECK_HEADERS
#include <cudnn_graph.h>
#else
typedef int cudnnStatus_t;
typedef int cudnnDataType_t;
typedef int cudnnBackendDescriptorType_t;
typedef int cudnnBackendAttributeName_t;
typedef int cudnnBackendAttributeType_t;
typedef int cudnnBackendHeurMode_t;
typedef void *cudnnBackendDescriptor_t;
typedef struct cudnnContext *cudnnHandle_t;
typedef CUstream cudaStream_t;
#endif

// Constants of cudnn_graph.h: name here, name there, value.
#define PB_DNN_CONSTANTS(X) \
  X(PB_DNN_SUCCESS, CUDNN_STATUS_SUCCESS, 0) \
  X(PB_DNN_NOT_INITIALIZED, CUDNN_STATUS_NOT_INITIALIZED, 1001) \
  X(PB_DNN_NO_SUBLIBRARY, CUDNN_STATUS_SUBLIBRARY_LOADING_FAILED, 1008) \
  X(PB_DNN_BAD_PARAM, CUDNN_STATUS_BAD_PARAM, 2000) \
  X(PB_DNN_NOT_FINALIZED, CUDNN_STATUS_BAD_PARAM_NOT_FINALIZED, 2004) \
  X(PB_DNN_NOT_SUPPORTED, CUDNN_STATUS_NOT_SUPPORTED, 3000) \
  X(PB_DNN_NO_HOST_MEMORY, CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED, 4003) \
  X(PB_DNN_NO_DEVICE_MEMORY, CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED, 4004) \
  X(PB_DNN_EXECUTION_FAILED, CUDNN_STATUS_EXECUTION_FAILED, 5000) \
  X(PB_DNN_FLOAT, CUDNN_DATA_FLOAT, 0) \
  X(PB_DNN_BFLOAT16, CUDNN_DATA_BFLOAT16, 9) \
  X(PB_DNN_TYPE_HANDLE, CUDNN_TYPE_HANDLE, 0) \
  X(PB_DNN_TYPE_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, 1) \
  X(PB_DNN_TYPE_BOOLEAN, CUDNN_TYPE_BOOLEAN, 2) \
  X(PB_DNN_TYPE_INT64, CUDNN_TYPE_INT64, 3) \
  X(PB_DNN_TYPE_VOID_PTR, CUDNN_TYPE_VOID_PTR, 6) \
  X(PB_DNN_TYPE_HEUR_MODE, CUDNN_TYPE_HEUR_MODE, 8) \
  X(PB_DNN_TYPE_DESCRIPTOR, CUDNN_TYPE_BACKEND_DESCRIPTOR, 15) \
  X(PB_DNN_ENGINECFG, CUDNN_BACKEND_ENGINECFG_DESCRIPTOR, 3) \
  X(PB_DNN_ENGINEHEUR, CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR, 4) \
  X(PB_DNN_PLAN, CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR, 5) \
  X(PB_DNN_GRAPH, CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR, 15) \
  X(PB_DNN_VARIANT_PACK, CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR, 16) \
  X(PB_DNN_TENSOR, CUDNN_BACKEND_TENSOR_DESCRIPTOR, 17) \
  X(PB_DNN_SDPA, CUDNN_BACKEND_OPERATION_SDPA_FWD_DESCRIPTOR, 41) \
  X(PB_DNN_HEUR_MODE, CUDNN_ATTR_ENGINEHEUR_MODE, 200) \
  X(PB_DNN_HEUR_GRAPH, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, 201) \
  X(PB_DNN_HEUR_RESULTS, CUDNN_ATTR_ENGINEHEUR_RESULTS, 202) \
  X(PB_DNN_PLAN_HANDLE, CUDNN_ATTR_EXECUTION_PLAN_HANDLE, 400) \
  X(PB_DNN_PLAN_CONFIG, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, 401) \
  X(PB_DNN_PLAN_WORKSPACE, CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE, 402) \
  X(PB_DNN_GRAPH_HANDLE, CUDNN_ATTR_OPERATIONGRAPH_HANDLE, 800) \
  X(PB_DNN_GRAPH_OPS, CUDNN_ATTR_OPERATIONGRAPH_OPS, 801) \
  X(PB_DNN_ALIGNMENT, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, 900) \
  X(PB_DNN_DATA_TYPE, CUDNN_ATTR_TENSOR_DATA_TYPE, 901) \
  X(PB_DNN_DIMENSIONS, CUDNN_ATTR_TENSOR_DIMENSIONS, 902) \
  X(PB_DNN_STRIDES, CUDNN_ATTR_TENSOR_STRIDES, 903) \
  X(PB_DNN_UNIQUE_ID, CUDNN_ATTR_TENSOR_UNIQUE_ID, 906) \
  X(PB_DNN_BY_VALUE, CUDNN_ATTR_TENSOR_IS_BY_VALUE, 908) \
  X(PB_DNN_PACK_IDS, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, 1000) \
  X(PB_DNN_PACK_POINTERS, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, 1001) \
  X(PB_DNN_PACK_WORKSPACE, CUDNN_ATTR_VARIANT_PACK_WORKSPACE, 1003) \
  X(PB_DNN_SDPA_Q, CUDNN_ATTR_OPERATION_SDPA_FWD_QDESC, 2800) \
  X(PB_DNN_SDPA_K, CUDNN_ATTR_OPERATION_SDPA_FWD_KDESC, 2801) \
  X(PB_DNN_SDPA_V, CUDNN_ATTR_OPERATION_SDPA_FWD_VDESC, 2802) \
  X(PB_DNN_SDPA_O, CUDNN_ATTR_OPERATION_SDPA_FWD_ODESC, 2803) \
  X(PB_DNN_SDPA_STATS, CUDNN_ATTR_OPERATION_SDPA_FWD_STATSDESC, 2804) \
  X(PB_DNN_SDPA_SCALE, CUDNN_ATTR_OPERATION_SDPA_FWD_SCALEDESC, 2805) \
  X(PB_DNN_MODE_A, CUDNN_HEUR_MODE_A, 3)

#define PB_CONSTANT(name, theirs, value) name = value,
enum { PB_DNN_CONSTANTS(PB_CONSTANT) };
#undef PB_CONSTANT

// The functions: result, name, parameters.
#define PB_DNN_FUNCTIONS(X) \
  X(const char *, cudnnGetErrorString, (cudnnStatus_t)) \
  X(void, cudnnGetLastErrorString, (char *, size_t)) \
  X(cudnnStatus_t, cudnnCreate, (cudnnHandle_t *)) \
  X(cudnnStatus_t, cudnnDestroy, (cudnnHandle_t)) \
  X(cudnnStatus_t, cudnnSetStream, (cudnnHandle_t, cudaStream_t)) \
  X(cudnnStatus_t, cudnnBackendCreateDescriptor, (cudnnBackendDescriptorType_t, cudnnBackendDescriptor_t *)) \
  X(cudnnStatus_t, cudnnBackendDestroyDescriptor, (cudnnBackendDescriptor_t)) \
  X(cudnnStatus_t, cudnnBackendFinalize, (cudnnBackendDescriptor_t)) \
  X(cudnnStatus_t, cudnnBackendSetAttribute, \
    (cudnnBackendDescriptor_t, cudnnBackendAttributeName_t, cudnnBackendAttributeType_t, int64_t, const void *)) \
  X(cudnnStatus_t, cudnnBackendGetAttribute, \
    (cudnnBackendDescriptor_t const, cudnnBackendAttributeName_t, cudnnBackendAttributeType_t, int64_t, int64_t *, void *)) \
  X(cudnnStatus_t, cudnnBackendExecute, (cudnnHandle_t, cudnnBackendDescriptor_t, cudnnBackendDescriptor_t))

#ifdef PB_CHECK_HEADERS
#define PB_SAME_DNN(result, name, params) \
  _Static_assert(__builtin_types_compatible_p(result(*) params, __typeof__(&name)), #name);
PB_DNN_FUNCTIONS(PB_SAME_DNN)
#define PB_SAME_DNN_VALUE(name, theirs, value) _Static_assert((int)theirs == value, #theirs);
PB_DNN_CONSTANTS(PB_SAME_DNN_VALUE)
_Static_assert(sizeof(cudnnStatus_t) == 4 && sizeof(cudnnDataType_t) == 4 && sizeof(cudnnBackendHeurMode_t) == 4, "enums");
_Static_assert(sizeof(cudnnBackendAttributeName_t) == 4 && sizeof(cudnnBackendAttributeType_t) == 4, "enums");
_Static_assert(sizeof(cudnnBackendDescriptorType_t) == 4 && sizeof(cudnnBackendDescriptor_t) == 8, "descriptors");
#endif

#endif
