#include "lt.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MEMBER(result, name, params) result(*name) params;
struct pb_lt {
  PB_LT_FUNCTIONS(MEMBER)
};
#undef MEMBER

struct pb_lt_device {
  pb_lt *lt;
  pb_device *device;
  cublasLtHandle_t handle;
};

struct pb_lt_plan {
  cublasLtMatmulDesc_t desc;
  cublasLtMatrixLayout_t x, w, c, y;
  cublasLtMatmulAlgo_t algo;
};

int pb_lt_load(void *library, pb_lt **out, pb_error *e) {
  pb_lt *lt = calloc(1, sizeof *lt);
#define LOAD(result, name, params)                                         \
  *(void **)&lt->name = dlsym(library, #name);                             \
  if (!lt->name) {                                                         \
    e->code = -1;                                                          \
    snprintf(e->text, sizeof e->text, "cuBLASLt has no %s", #name);        \
    free(lt);                                                              \
    return -1;                                                             \
  }
  PB_LT_FUNCTIONS(LOAD)
#undef LOAD
  *out = lt;
  return 0;
}

static int kind(cublasStatus_t s) {
  switch (s) {
    case PB_LT_ALLOC_FAILED:
      return PB_KIND_MEMORY;
    case PB_LT_NOT_INITIALIZED:
    case PB_LT_INVALID_VALUE:
    case PB_LT_ARCH_MISMATCH:
    case PB_LT_NOT_SUPPORTED:
      return PB_KIND_REFUSED;
  }
  return PB_KIND_LOST;
}

static int failed(pb_lt *lt, cublasStatus_t s, const char *call, pb_error *e) {
  e->code = PB_LT_CODES + (int)s;
  e->kind = kind(s);
  snprintf(e->call, sizeof e->call, "%s", call);
  snprintf(e->text, sizeof e->text, "%s: %s", lt->cublasLtGetStatusName(s), lt->cublasLtGetStatusString(s));
  return e->code;
}

// CALL runs a function of the library and leaves the entry when it fails.
#define CALL(lt, name, ...)                                  \
  do {                                                       \
    cublasStatus_t got = (lt)->name(__VA_ARGS__);            \
    if (got != PB_LT_SUCCESS) return failed(lt, got, #name, e); \
  } while (0)

int pb_lt_open(pb_lt *lt, pb_device *d, pb_lt_device **out, pb_error *e) {
  if (pb_current(d, e)) return e->code;
  pb_lt_device v = {.lt = lt, .device = d};
  CALL(lt, cublasLtCreate, &v.handle);
  *out = malloc(sizeof v);
  **out = v;
  return 0;
}

int pb_lt_close(pb_lt_device *d, pb_error *e) {
  pb_lt *lt = d->lt;
  cublasLtHandle_t handle = d->handle;
  if (pb_current(d->device, e)) return e->code;
  free(d);
  CALL(lt, cublasLtDestroy, handle);
  return 0;
}

// The library counts columns first: y [m, n] in rows is its y^T [n, m], the product of w [k, n] transposed and x [k, m].
static int describe(pb_lt *lt, pb_lt_plan *p, const pb_lt_shape *s, pb_error *e) {
  int32_t trans = PB_LT_OP_T, plain = PB_LT_OP_N;
  uint32_t epilogue = (uint32_t)s->epilogue;
  CALL(lt, cublasLtMatmulDescCreate, &p->desc, PB_LT_COMPUTE_32F, PB_LT_R_32F);
  CALL(lt, cublasLtMatmulDescSetAttribute, p->desc, PB_LT_DESC_TRANSA, &trans, sizeof trans);
  CALL(lt, cublasLtMatmulDescSetAttribute, p->desc, PB_LT_DESC_TRANSB, &plain, sizeof plain);
  CALL(lt, cublasLtMatmulDescSetAttribute, p->desc, PB_LT_DESC_EPILOGUE, &epilogue, sizeof epilogue);
  CALL(lt, cublasLtMatrixLayoutCreate, &p->w, PB_LT_R_16BF, (uint64_t)s->k, (uint64_t)s->n, s->ldw);
  CALL(lt, cublasLtMatrixLayoutCreate, &p->x, PB_LT_R_16BF, (uint64_t)s->k, (uint64_t)s->m, s->ldx);
  CALL(lt, cublasLtMatrixLayoutCreate, &p->c, PB_LT_R_16BF, (uint64_t)s->n, (uint64_t)s->m, s->ldc);
  CALL(lt, cublasLtMatrixLayoutCreate, &p->y, PB_LT_R_16BF, (uint64_t)s->n, (uint64_t)s->m, s->ldy);
  return 0;
}

// choose asks for the best algorithm; *found 0: there is none.
static int choose(pb_lt_device *d, pb_lt_plan *p, uint64_t workspace, cublasLtMatmulPreference_t *pref, int *found, pb_error *e) {
  pb_lt *lt = d->lt;
  uint32_t align = 16;
  CALL(lt, cublasLtMatmulPreferenceCreate, pref);
  CALL(lt, cublasLtMatmulPreferenceSetAttribute, *pref, PB_LT_PREF_MAX_WORKSPACE, &workspace, sizeof workspace);
  CALL(lt, cublasLtMatmulPreferenceSetAttribute, *pref, PB_LT_PREF_ALIGNMENT_A, &align, sizeof align);
  CALL(lt, cublasLtMatmulPreferenceSetAttribute, *pref, PB_LT_PREF_ALIGNMENT_B, &align, sizeof align);
  CALL(lt, cublasLtMatmulPreferenceSetAttribute, *pref, PB_LT_PREF_ALIGNMENT_C, &align, sizeof align);
  CALL(lt, cublasLtMatmulPreferenceSetAttribute, *pref, PB_LT_PREF_ALIGNMENT_D, &align, sizeof align);
  cublasLtMatmulHeuristicResult_t best;
  memset(&best, 0, sizeof best);
  cublasStatus_t s = lt->cublasLtMatmulAlgoGetHeuristic(d->handle, p->desc, p->w, p->x, p->c, p->y, *pref, 1, &best, found);
  if (s == PB_LT_NOT_SUPPORTED || (s == PB_LT_SUCCESS && *found && best.state != PB_LT_SUCCESS)) *found = 0;
  if (s != PB_LT_SUCCESS && s != PB_LT_NOT_SUPPORTED) return failed(lt, s, "cublasLtMatmulAlgoGetHeuristic", e);
  p->algo = best.algo;
  return 0;
}

int pb_lt_plan_new(pb_lt_device *d, const pb_lt_shape *s, uint64_t workspace, pb_lt_plan **out, pb_error *e) {
  *out = NULL;
  if (pb_current(d->device, e)) return e->code;
  pb_lt_plan *p = calloc(1, sizeof *p);
  cublasLtMatmulPreference_t pref = NULL;
  int found = 0, bad = describe(d->lt, p, s, e);
  if (!bad) bad = choose(d, p, workspace, &pref, &found, e);
  if (pref) d->lt->cublasLtMatmulPreferenceDestroy(pref);
  if (bad || !found)
    pb_lt_plan_free(d, p);
  else
    *out = p;
  return bad;
}

void pb_lt_plan_free(pb_lt_device *d, pb_lt_plan *p) {
  cublasLtMatrixLayout_t layouts[] = {p->x, p->w, p->c, p->y};
  for (int i = 0; i < 4; i++)
    if (layouts[i]) d->lt->cublasLtMatrixLayoutDestroy(layouts[i]);
  if (p->desc) d->lt->cublasLtMatmulDescDestroy(p->desc);
  free(p);
}

int pb_lt_matmul(pb_lt_device *d, uint64_t stream, pb_lt_plan *p, float alpha, uint64_t x, uint64_t w, float beta, uint64_t c, uint64_t y, uint64_t bias,
                 uint64_t workspace, uint64_t bytes, pb_error *e) {
  if (pb_current(d->device, e)) return e->code;
  const void *vector = (const void *)(uintptr_t)bias;
  if (bias) CALL(d->lt, cublasLtMatmulDescSetAttribute, p->desc, PB_LT_DESC_BIAS_POINTER, &vector, sizeof vector);
  CALL(d->lt, cublasLtMatmul, d->handle, p->desc, &alpha, (const void *)(uintptr_t)w, p->w, (const void *)(uintptr_t)x, p->x, &beta,
       (const void *)(uintptr_t)c, p->c, (void *)(uintptr_t)y, p->y, &p->algo, (void *)(uintptr_t)workspace, bytes, (cudaStream_t)(uintptr_t)stream);
  return 0;
}
