// Products by cuBLASLt: what Go calls of it. A plan is a product of one shape with the algorithm that the library has chosen for it.
#ifndef PB_LT_H
#define PB_LT_H

#include "cublaslt.h"
#include "shim.h"

// Codes of pb_error for what cuBLASLt returns start here.
enum { PB_LT_CODES = PB_LIBRARY_CODES };

typedef struct pb_lt pb_lt;            // the opened library
typedef struct pb_lt_device pb_lt_device;
typedef struct pb_lt_plan pb_lt_plan;

// y [m, n] = act(alpha x [m, k] w [n, k]^T + beta c [m, n] + bias [n]), everything bf16; ld count elements between rows. epilogue is one of cublasLtEpilogue_t.
typedef struct {
  int m, n, k, epilogue;
  int64_t ldx, ldw, ldc, ldy;
} pb_lt_shape;

int pb_lt_load(void *library, pb_lt **out, pb_error *e);
int pb_lt_open(pb_lt *lt, pb_device *d, pb_lt_device **out, pb_error *e);
int pb_lt_close(pb_lt_device *d, pb_error *e);
// pb_lt_plan_new gives no plan, and no error, where the library has no algorithm for the shape within the workspace.
int pb_lt_plan_new(pb_lt_device *d, const pb_lt_shape *s, uint64_t workspace, pb_lt_plan **out, pb_error *e);
void pb_lt_plan_free(pb_lt_device *d, pb_lt_plan *p);
int pb_lt_matmul(pb_lt_device *d, uint64_t stream, pb_lt_plan *p, float alpha, uint64_t x, uint64_t w, float beta, uint64_t c, uint64_t y, uint64_t bias,
                 uint64_t workspace, uint64_t bytes, pb_error *e);

#endif
