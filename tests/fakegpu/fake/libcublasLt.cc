// A libcublasLt.so.12 without a GPU: products on the CPU, in the order of the fake device's streams. It takes what a caller may rely on in the real one and
// refuses all else: attributes it does not know, of another size than the header says, shapes that do not fit together, addresses that are not aligned or not
// of the device, a workspace smaller than the algorithm was promised. The workspace is filled with NaN while a product runs.
#pragma GCC optimize("O3")
#include "cublaslt.h"

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "device.h"

struct cublasLtContext {
  CUcontext context;
};
struct pb_lt_layout {
  cudaDataType_t type;
  uint64_t rows, cols;
  int64_t ld;
};
struct pb_lt_desc {
  int32_t transa = PB_LT_OP_N, transb = PB_LT_OP_N;
  uint32_t epilogue = PB_LT_DEFAULT;
  const uint16_t *bias = nullptr;
};
struct pb_lt_preference {
  uint64_t workspace = 0;
  uint32_t align[4] = {256, 256, 256, 256};
};

namespace {

const uint64_t magic = 0x6661c0b1a5ull;

cublasStatus_t refuse(cublasStatus_t s, const std::string &why) {
  fakegpu::say("cublasLt: " + why);
  return s;
}

float widen(uint16_t h) {
  uint32_t u = (uint32_t)h << 16;
  float f;
  memcpy(&f, &u, 4);
  return f;
}
uint16_t narrow(float f) {
  uint32_t u;
  memcpy(&u, &f, 4);
  if ((u & 0x7fffffff) > 0x7f800000) return 0x7fff;
  return (uint16_t)((u + 0x7fff + (u >> 16 & 1)) >> 16);
}

// value copies an attribute of the size that the header gives it.
template <class T>
cublasStatus_t value(T *to, const void *from, size_t bytes) {
  if (!from || bytes != sizeof(T)) return refuse(PB_LT_INVALID_VALUE, "an attribute of " + std::to_string(bytes) + " bytes");
  memcpy(to, from, bytes);
  return PB_LT_SUCCESS;
}

bool biased(uint32_t epilogue) { return epilogue & PB_LT_BIAS; }

// The product of one call: rows x cols of the result, depth of the sums.
struct shape {
  uint64_t rows, cols, depth;
};

// fits reports whether the operands of a product fit together, and makes its shape.
bool fits(const pb_lt_desc *d, const pb_lt_layout *a, const pb_lt_layout *b, const pb_lt_layout *c, const pb_lt_layout *y, shape *s) {
  auto rows = [](const pb_lt_layout *l, int32_t t) { return t == PB_LT_OP_N ? l->rows : l->cols; };
  auto cols = [](const pb_lt_layout *l, int32_t t) { return t == PB_LT_OP_N ? l->cols : l->rows; };
  *s = {rows(a, d->transa), cols(b, d->transb), cols(a, d->transa)};
  for (const pb_lt_layout *l : {a, b, c, y})
    if (l->type != PB_LT_R_16BF || l->ld < (int64_t)l->rows || !l->rows || !l->cols) return false;
  return rows(b, d->transb) == s->depth && c->rows == s->rows && c->cols == s->cols && y->rows == s->rows && y->cols == s->cols;
}

uint64_t bytes(const pb_lt_layout *l) { return 2 * ((l->cols - 1) * l->ld + l->rows); }

// needs is the workspace of the algorithm for a shape: some, and never what the caller would have anyway.
uint64_t needs(const shape &s) { return 4096 + 16 * (s.rows % 64 + s.cols % 64); }

cublasLtMatmulAlgo_t algorithm(const shape &s, const pb_lt_desc *d, const pb_lt_layout *a, const pb_lt_layout *b, const pb_lt_layout *c,
                               const pb_lt_layout *y) {
  return {{magic, s.rows, s.cols, s.depth, d->epilogue, (uint64_t)a->ld << 32 | (uint64_t)b->ld, (uint64_t)c->ld << 32 | (uint64_t)y->ld, needs(s)}};
}

float activate(float v, uint32_t epilogue) {
  if (epilogue == PB_LT_RELU || epilogue == PB_LT_RELU_BIAS) return v > 0 ? v : v != v ? v : 0;
  if (epilogue == PB_LT_GELU || epilogue == PB_LT_GELU_BIAS) return 0.5f * v * (1 + std::tanh(0.7978845608f * (v + 0.044715f * v * v * v)));
  return v;
}

struct call {
  shape s;
  pb_lt_desc d;
  pb_lt_layout la, lb, lc, ly;
  float alpha, beta;
  const uint16_t *a, *b, *c;
  uint16_t *y;
  void *workspace;
};

// matrix widens op(l) into rows of depth numbers, one a row of the product (by_row) or a column of it.
std::vector<float> matrix(const uint16_t *p, const pb_lt_layout &l, bool along, uint64_t count, uint64_t depth) {
  std::vector<float> out(count * depth);
  for (uint64_t i = 0; i < count; i++)
    for (uint64_t k = 0; k < depth; k++) out[i * depth + k] = widen(along ? p[k + i * l.ld] : p[i + k * l.ld]);
  return out;
}

void run(const call &c) {
  memset(c.workspace, 0xff, needs(c.s));
  uint64_t depth = c.s.depth;
  std::vector<float> a = matrix(c.a, c.la, c.d.transa == PB_LT_OP_T, c.s.rows, depth), b = matrix(c.b, c.lb, c.d.transb == PB_LT_OP_N, c.s.cols, depth);
  for (uint64_t j = 0; j < c.s.cols; j++)
    for (uint64_t i = 0; i < c.s.rows; i++) {
      const float *p = &a[i * depth], *q = &b[j * depth];
      float part[16] = {}, sum = 0;
      uint64_t k = 0;
      for (; k + 16 <= depth; k += 16)
        for (int l = 0; l < 16; l++) part[l] += p[k + l] * q[k + l];
      for (; k < depth; k++) sum += p[k] * q[k];
      for (float v : part) sum += v;
      sum *= c.alpha;
      if (c.beta != 0) sum += c.beta * widen(c.c[i + j * c.lc.ld]);
      if (biased(c.d.epilogue)) sum += widen(c.d.bias[i]);
      c.y[i + j * c.ly.ld] = narrow(activate(sum, c.d.epilogue));
    }
  memset(c.workspace, 0xff, needs(c.s));
}

}  // namespace

#pragma GCC visibility push(default)
extern "C" {

size_t cublasLtGetVersion(void) {
  const char *v = getenv("FAKEGPU_CUBLASLT");
  return v && *v ? strtoull(v, nullptr, 10) : 120405;
}

const char *cublasLtGetStatusName(cublasStatus_t code) {
#define NAME(name, theirs, value) \
  if (code == value && !strncmp(#theirs, "CUBLAS_STATUS_", 14)) return #theirs;
  PB_LT_CONSTANTS(NAME)
  return "unknown";
}

const char *cublasLtGetStatusString(cublasStatus_t) { return "fake library"; }

cublasStatus_t cublasLtCreate(cublasLtHandle_t *out) {
  if (!fakegpu::context()) return refuse(PB_LT_NOT_INITIALIZED, "no context is current");
  if (fakegpu::synchronize()) return refuse((cublasStatus_t)14, "the device could not be waited for");
  *out = new cublasLtContext{fakegpu::context()};
  return PB_LT_SUCCESS;
}

cublasStatus_t cublasLtDestroy(cublasLtHandle_t h) {
  delete h;
  return PB_LT_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t *out, cublasComputeType_t compute, cudaDataType_t scale) {
  if (compute != PB_LT_COMPUTE_32F || scale != PB_LT_R_32F) return refuse(PB_LT_INVALID_VALUE, "sums that are not f32");
  *out = new pb_lt_desc;
  return PB_LT_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t d) {
  delete d;
  return PB_LT_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t d, cublasLtMatmulDescAttributes_t what, const void *from, size_t bytes) {
  switch (what) {
    case PB_LT_DESC_TRANSA: return value(&d->transa, from, bytes);
    case PB_LT_DESC_TRANSB: return value(&d->transb, from, bytes);
    case PB_LT_DESC_EPILOGUE: return value(&d->epilogue, from, bytes);
    case PB_LT_DESC_BIAS_POINTER: return value(&d->bias, from, bytes);
  }
  return refuse(PB_LT_INVALID_VALUE, "unknown attribute of a product: " + std::to_string(what));
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t *out, cudaDataType_t type, uint64_t rows, uint64_t cols, int64_t ld) {
  *out = new pb_lt_layout{type, rows, cols, ld};
  return PB_LT_SUCCESS;
}

cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t l) {
  delete l;
  return PB_LT_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t *out) {
  *out = new pb_lt_preference;
  return PB_LT_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t p) {
  delete p;
  return PB_LT_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t p, cublasLtMatmulPreferenceAttributes_t what, const void *from,
                                                    size_t bytes) {
  switch (what) {
    case PB_LT_PREF_MAX_WORKSPACE: return value(&p->workspace, from, bytes);
    case PB_LT_PREF_ALIGNMENT_A:
    case PB_LT_PREF_ALIGNMENT_B:
    case PB_LT_PREF_ALIGNMENT_C:
    case PB_LT_PREF_ALIGNMENT_D: return value(&p->align[what - PB_LT_PREF_ALIGNMENT_A], from, bytes);
  }
  return refuse(PB_LT_INVALID_VALUE, "unknown attribute of a preference: " + std::to_string(what));
}

// There is no algorithm for odd numbers of features, none with a bias where they are 30 modulo 32, and the library fails where they are 26, for callers must
// do without now and then.
cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t h, cublasLtMatmulDesc_t d, cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                              cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t y, cublasLtMatmulPreference_t p, int count,
                                              cublasLtMatmulHeuristicResult_t *out, int *found) {
  shape s;
  *found = 0;
  if (h->context != fakegpu::context()) return refuse(PB_LT_INVALID_VALUE, "the context of the handle is not current");
  if (count < 1 || !fits(d, a, b, c, y, &s)) return refuse(PB_LT_INVALID_VALUE, "operands that do not fit together");
  for (uint32_t align : p->align)
    if (align > 16) return refuse(PB_LT_INVALID_VALUE, "callers give addresses of 16 bytes and promise more");
  if (s.rows % 32 == 26) return (cublasStatus_t)14;  // CUBLAS_STATUS_INTERNAL_ERROR
  if (s.rows % 2 || needs(s) > p->workspace || (s.rows % 32 == 30 && biased(d->epilogue))) return PB_LT_NOT_SUPPORTED;
  memset(out, 0, sizeof *out);
  out->algo = algorithm(s, d, a, b, c, y);
  out->workspaceSize = needs(s);
  out->state = PB_LT_SUCCESS;
  *found = 1;
  return PB_LT_SUCCESS;
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t h, cublasLtMatmulDesc_t d, const void *alpha, const void *a, cublasLtMatrixLayout_t la, const void *b,
                              cublasLtMatrixLayout_t lb, const void *beta, const void *c, cublasLtMatrixLayout_t lc, void *y, cublasLtMatrixLayout_t ly,
                              const cublasLtMatmulAlgo_t *algo, void *workspace, size_t size, cudaStream_t stream) {
  call p{{}, *d, *la, *lb, *lc, *ly, *(const float *)alpha, *(const float *)beta, (const uint16_t *)a, (const uint16_t *)b, (const uint16_t *)c,
         (uint16_t *)y, workspace};
  if (h->context != fakegpu::context()) return refuse(PB_LT_INVALID_VALUE, "the context of the handle is not current");
  if (!fits(d, la, lb, lc, ly, &p.s)) return refuse(PB_LT_INVALID_VALUE, "operands that do not fit together");
  cublasLtMatmulAlgo_t want = algorithm(p.s, d, la, lb, lc, ly);
  if (!algo || memcmp(algo, &want, sizeof want)) return refuse(PB_LT_INVALID_VALUE, "an algorithm of another product");
  if (size < needs(p.s) || !fakegpu::device_memory(workspace, size)) return refuse(PB_LT_INVALID_VALUE, "a workspace that is too small or no memory");
  if (c == y && lc->ld != ly->ld) return refuse(PB_LT_INVALID_VALUE, "one matrix with two layouts");
  const void *at[] = {a, b, c, y};
  const pb_lt_layout *layouts[] = {la, lb, lc, ly};
  for (int i = 0; i < 4; i++) {
    if ((i != 2 || p.beta != 0) && !fakegpu::device_memory(at[i], bytes(layouts[i])))
      return refuse(PB_LT_INVALID_VALUE, "an operand beyond its memory");
    if ((uintptr_t)at[i] % 16 || layouts[i]->ld * 2 % 16) return refuse(PB_LT_INVALID_VALUE, "rows that are not aligned to 16 bytes");
  }
  if (biased(d->epilogue) && ((uintptr_t)d->bias % 16 || !fakegpu::device_memory(d->bias, 2 * p.s.rows)))
    return refuse(PB_LT_INVALID_VALUE, "a bias that is not there");
  return fakegpu::enqueue(stream, [p] { run(p); }) == PB_SUCCESS ? PB_LT_SUCCESS : PB_LT_INVALID_VALUE;
}

}  // extern "C"
