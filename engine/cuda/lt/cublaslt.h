// cuBLASLt as this program knows it: types, constants and one list of functions, all checked against NVIDIA's header by `make cuda-check`
// (PB_CHECK_HEADERS). The library is opened when the program runs.
#ifndef PB_CUBLASLT_H
#define PB_CUBLASLT_H

#include "driver.h"

#define PB_LT_ALGO_FIELDS uint64_t data[8];
#define PB_LT_RESULT_FIELDS    \
  cublasLtMatmulAlgo_t algo;   \
  size_t workspaceSize;        \
  cublasStatus_t state;        \
  float wavesCount;            \
  int reserved[4];

#ifdef PB_CHECK_HEADERS
#include <cublasLt.h>
#else
typedef int cublasStatus_t;
typedef int cublasComputeType_t;
typedef int cudaDataType_t;
typedef int cublasLtMatmulDescAttributes_t;
typedef int cublasLtMatmulPreferenceAttributes_t;
typedef CUstream cudaStream_t;
typedef struct cublasLtContext *cublasLtHandle_t;
typedef struct pb_lt_layout *cublasLtMatrixLayout_t;
typedef struct pb_lt_desc *cublasLtMatmulDesc_t;
typedef struct pb_lt_preference *cublasLtMatmulPreference_t;
typedef struct {
  PB_LT_ALGO_FIELDS
} cublasLtMatmulAlgo_t;
typedef struct {
  PB_LT_RESULT_FIELDS
} cublasLtMatmulHeuristicResult_t;
#endif

// Constants of cublasLt.h and the headers it includes: name here, name there, value.
#define PB_LT_CONSTANTS(X) \
  X(PB_LT_SUCCESS, CUBLAS_STATUS_SUCCESS, 0) \
  X(PB_LT_NOT_INITIALIZED, CUBLAS_STATUS_NOT_INITIALIZED, 1) \
  X(PB_LT_ALLOC_FAILED, CUBLAS_STATUS_ALLOC_FAILED, 3) \
  X(PB_LT_INVALID_VALUE, CUBLAS_STATUS_INVALID_VALUE, 7) \
  X(PB_LT_ARCH_MISMATCH, CUBLAS_STATUS_ARCH_MISMATCH, 8) \
  X(PB_LT_NOT_SUPPORTED, CUBLAS_STATUS_NOT_SUPPORTED, 15) \
  X(PB_LT_COMPUTE_32F, CUBLAS_COMPUTE_32F, 68) \
  X(PB_LT_R_32F, CUDA_R_32F, 0) \
  X(PB_LT_R_16BF, CUDA_R_16BF, 14) \
  X(PB_LT_OP_N, CUBLAS_OP_N, 0) \
  X(PB_LT_OP_T, CUBLAS_OP_T, 1) \
  X(PB_LT_DESC_TRANSA, CUBLASLT_MATMUL_DESC_TRANSA, 3) \
  X(PB_LT_DESC_TRANSB, CUBLASLT_MATMUL_DESC_TRANSB, 4) \
  X(PB_LT_DESC_EPILOGUE, CUBLASLT_MATMUL_DESC_EPILOGUE, 7) \
  X(PB_LT_DESC_BIAS_POINTER, CUBLASLT_MATMUL_DESC_BIAS_POINTER, 8) \
  X(PB_LT_PREF_MAX_WORKSPACE, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, 1) \
  X(PB_LT_PREF_ALIGNMENT_A, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, 5) \
  X(PB_LT_PREF_ALIGNMENT_B, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, 6) \
  X(PB_LT_PREF_ALIGNMENT_C, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, 7) \
  X(PB_LT_PREF_ALIGNMENT_D, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, 8) \
  X(PB_LT_DEFAULT, CUBLASLT_EPILOGUE_DEFAULT, 1) \
  X(PB_LT_RELU, CUBLASLT_EPILOGUE_RELU, 2) \
  X(PB_LT_BIAS, CUBLASLT_EPILOGUE_BIAS, 4) \
  X(PB_LT_RELU_BIAS, CUBLASLT_EPILOGUE_RELU_BIAS, 6) \
  X(PB_LT_GELU, CUBLASLT_EPILOGUE_GELU, 32) \
  X(PB_LT_GELU_BIAS, CUBLASLT_EPILOGUE_GELU_BIAS, 36)

#define PB_CONSTANT(name, theirs, value) name = value,
enum { PB_LT_CONSTANTS(PB_CONSTANT) };
#undef PB_CONSTANT

// The functions: result, name, parameters.
#define PB_LT_FUNCTIONS(X) \
  X(const char *, cublasLtGetStatusName, (cublasStatus_t)) \
  X(const char *, cublasLtGetStatusString, (cublasStatus_t)) \
  X(cublasStatus_t, cublasLtCreate, (cublasLtHandle_t *)) \
  X(cublasStatus_t, cublasLtDestroy, (cublasLtHandle_t)) \
  X(cublasStatus_t, cublasLtMatmulDescCreate, (cublasLtMatmulDesc_t *, cublasComputeType_t, cudaDataType_t)) \
  X(cublasStatus_t, cublasLtMatmulDescDestroy, (cublasLtMatmulDesc_t)) \
  X(cublasStatus_t, cublasLtMatmulDescSetAttribute, (cublasLtMatmulDesc_t, cublasLtMatmulDescAttributes_t, const void *, size_t)) \
  X(cublasStatus_t, cublasLtMatrixLayoutCreate, (cublasLtMatrixLayout_t *, cudaDataType_t, uint64_t, uint64_t, int64_t)) \
  X(cublasStatus_t, cublasLtMatrixLayoutDestroy, (cublasLtMatrixLayout_t)) \
  X(cublasStatus_t, cublasLtMatmulPreferenceCreate, (cublasLtMatmulPreference_t *)) \
  X(cublasStatus_t, cublasLtMatmulPreferenceDestroy, (cublasLtMatmulPreference_t)) \
  X(cublasStatus_t, cublasLtMatmulPreferenceSetAttribute, \
    (cublasLtMatmulPreference_t, cublasLtMatmulPreferenceAttributes_t, const void *, size_t)) \
  X(cublasStatus_t, cublasLtMatmulAlgoGetHeuristic, \
    (cublasLtHandle_t, cublasLtMatmulDesc_t, cublasLtMatrixLayout_t, cublasLtMatrixLayout_t, cublasLtMatrixLayout_t, \
     cublasLtMatrixLayout_t, cublasLtMatmulPreference_t, int, cublasLtMatmulHeuristicResult_t *, int *)) \
  X(cublasStatus_t, cublasLtMatmul, \
    (cublasLtHandle_t, cublasLtMatmulDesc_t, const void *, const void *, cublasLtMatrixLayout_t, const void *, \
     cublasLtMatrixLayout_t, const void *, const void *, cublasLtMatrixLayout_t, void *, cublasLtMatrixLayout_t, \
     const cublasLtMatmulAlgo_t *, void *, size_t, cudaStream_t))

#ifdef PB_CHECK_HEADERS
#define PB_SAME_LT(result, name, params) \
  _Static_assert(__builtin_types_compatible_p(result(*) params, __typeof__(&name)), #name);
PB_LT_FUNCTIONS(PB_SAME_LT)
#define PB_SAME_LT_VALUE(name, theirs, value) _Static_assert((int)theirs == value, #theirs);
PB_LT_CONSTANTS(PB_SAME_LT_VALUE)
typedef struct {
  PB_LT_ALGO_FIELDS
} pb_lt_algo;
typedef struct {
  PB_LT_RESULT_FIELDS
} pb_lt_result;
_Static_assert(sizeof(pb_lt_algo) == sizeof(cublasLtMatmulAlgo_t), "algorithm");
_Static_assert(sizeof(pb_lt_result) == sizeof(cublasLtMatmulHeuristicResult_t), "result");
_Static_assert(offsetof(pb_lt_result, workspaceSize) == offsetof(cublasLtMatmulHeuristicResult_t, workspaceSize), "result");
_Static_assert(offsetof(pb_lt_result, state) == offsetof(cublasLtMatmulHeuristicResult_t, state), "result");
_Static_assert(sizeof(cublasStatus_t) == 4 && sizeof(cudaDataType_t) == 4 && sizeof(cublasLtMatmulDescAttributes_t) == 4, "enums");
#endif

#endif
