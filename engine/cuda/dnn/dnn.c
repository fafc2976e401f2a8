#include "dnn.h"

#include <dlfcn.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MEMBER(result, name, params) result(*name) params;
struct pb_dnn {
  PB_DNN_FUNCTIONS(MEMBER)
};
#undef MEMBER

struct pb_dnn_stream {
  pb_dnn *dnn;
  pb_device *device;
  cudnnHandle_t handle;
};

// Numbers of the tensors of a plan, which the variant pack of a call refers to.
enum { Q = 1, K, V, O, SCALE, STATS, TENSORS = STATS };

struct pb_dnn_plan {
  cudnnBackendDescriptor_t tensor[TENSORS + 1], sdpa, graph, heuristic, config, plan;
  int stats;
};

static int failed(pb_dnn *dnn, cudnnStatus_t s, const char *call, pb_error *e) {
  char last[160] = "";
  dnn->cudnnGetLastErrorString(last, sizeof last);
  e->code = PB_DNN_CODES + (int)s;
  e->kind = s == PB_DNN_NO_DEVICE_MEMORY ? PB_KIND_MEMORY : s < PB_DNN_EXECUTION_FAILED ? PB_KIND_REFUSED : PB_KIND_LOST;
  snprintf(e->call, sizeof e->call, "%s", call);
  snprintf(e->text, sizeof e->text, "%s%s%s", dnn->cudnnGetErrorString(s), *last ? ": " : "", last);
  return e->code;
}

// CALL runs a function of the library and leaves the entry when it fails.
#define CALL(dnn, name, ...)                                        \
  do {                                                              \
    cudnnStatus_t got = (dnn)->name(__VA_ARGS__);                   \
    if (got != PB_DNN_SUCCESS) return failed(dnn, got, #name, e);   \
  } while (0)

// SET gives a descriptor an attribute of count elements.
#define SET(dnn, desc, attribute, type, count, at) CALL(dnn, cudnnBackendSetAttribute, desc, attribute, type, count, at)

int pb_dnn_load(void *library, pb_dnn **out, pb_error *e) {
  pb_dnn *dnn = calloc(1, sizeof *dnn);
#define LOAD(result, name, params)                                   \
  *(void **)&dnn->name = dlsym(library, #name);                      \
  if (!dnn->name) {                                                  \
    e->code = -1;                                                    \
    snprintf(e->text, sizeof e->text, "cuDNN has no %s", #name);     \
    free(dnn);                                                       \
    return -1;                                                       \
  }
  PB_DNN_FUNCTIONS(LOAD)
#undef LOAD
  cudnnBackendDescriptor_t probe;
  cudnnStatus_t s = dnn->cudnnBackendCreateDescriptor(PB_DNN_SDPA, &probe);
  if (s != PB_DNN_SUCCESS) {
    failed(dnn, s, "cudnnBackendCreateDescriptor", e);
    free(dnn);
    return e->code;
  }
  dnn->cudnnBackendDestroyDescriptor(probe);
  *out = dnn;
  return 0;
}

int pb_dnn_open(pb_dnn *dnn, pb_device *d, uint64_t stream, pb_dnn_stream **out, pb_error *e) {
  if (pb_current(d, e)) return e->code;
  pb_dnn_stream v = {.dnn = dnn, .device = d};
  CALL(dnn, cudnnCreate, &v.handle);
  cudnnStatus_t s = dnn->cudnnSetStream(v.handle, (cudaStream_t)(uintptr_t)stream);
  if (s != PB_DNN_SUCCESS) {
    failed(dnn, s, "cudnnSetStream", e);
    dnn->cudnnDestroy(v.handle);
    return e->code;
  }
  *out = malloc(sizeof v);
  **out = v;
  return 0;
}

int pb_dnn_close(pb_dnn_stream *s, pb_error *e) {
  pb_dnn_stream v = *s;
  free(s);
  if (pb_current(v.device, e)) return e->code;
  CALL(v.dnn, cudnnDestroy, v.handle);
  return 0;
}

// tensor describes operand id: dimensions and strides in the order b, h, l, d. One by value is a number in host memory.
static int tensor(pb_dnn *dnn, cudnnBackendDescriptor_t *at, int64_t id, cudnnDataType_t type, const int64_t dims[4], const int64_t strides[4], bool value,
                  pb_error *e) {
  int64_t align = type == PB_DNN_FLOAT ? 4 : 16;
  CALL(dnn, cudnnBackendCreateDescriptor, PB_DNN_TENSOR, at);
  SET(dnn, *at, PB_DNN_UNIQUE_ID, PB_DNN_TYPE_INT64, 1, &id);
  SET(dnn, *at, PB_DNN_DATA_TYPE, PB_DNN_TYPE_DATA_TYPE, 1, &type);
  SET(dnn, *at, PB_DNN_ALIGNMENT, PB_DNN_TYPE_INT64, 1, &align);
  SET(dnn, *at, PB_DNN_DIMENSIONS, PB_DNN_TYPE_INT64, 4, dims);
  SET(dnn, *at, PB_DNN_STRIDES, PB_DNN_TYPE_INT64, 4, strides);
  if (value) SET(dnn, *at, PB_DNN_BY_VALUE, PB_DNN_TYPE_BOOLEAN, 1, &value);
  CALL(dnn, cudnnBackendFinalize, *at);
  return 0;
}

static int tensors(pb_dnn *dnn, pb_dnn_plan *p, const pb_dnn_shape *s, pb_error *e) {
  const int64_t *of[] = {s->q, s->k, s->v, s->o};
  for (int i = Q; i <= O; i++) {
    const int64_t *t = of[i - Q];
    int64_t dims[] = {s->b, s->h, i == K || i == V ? s->lk : s->lq, s->d}, strides[] = {t[0], t[2], t[1], 1};
    if (tensor(dnn, &p->tensor[i], i, PB_DNN_BFLOAT16, dims, strides, false, e)) return e->code;
  }
  const int64_t one[] = {1, 1, 1, 1};
  if (tensor(dnn, &p->tensor[SCALE], SCALE, PB_DNN_FLOAT, one, one, true, e)) return e->code;
  if (!s->stats) return 0;
  int64_t dims[] = {s->b, s->h, s->lq, 1}, strides[] = {s->lse[0], s->lse[1], 1, 1};
  return tensor(dnn, &p->tensor[STATS], STATS, PB_DNN_FLOAT, dims, strides, false, e);
}

static int operation(pb_dnn *dnn, pb_dnn_plan *p, pb_error *e) {
  const int names[] = {[Q] = PB_DNN_SDPA_Q, [K] = PB_DNN_SDPA_K, [V] = PB_DNN_SDPA_V, [O] = PB_DNN_SDPA_O, [SCALE] = PB_DNN_SDPA_SCALE,
                       [STATS] = PB_DNN_SDPA_STATS};
  CALL(dnn, cudnnBackendCreateDescriptor, PB_DNN_SDPA, &p->sdpa);
  for (int i = Q; i <= TENSORS; i++)
    if (p->tensor[i]) SET(dnn, p->sdpa, names[i], PB_DNN_TYPE_DESCRIPTOR, 1, &p->tensor[i]);
  CALL(dnn, cudnnBackendFinalize, p->sdpa);
  return 0;
}

// describe makes the graph that is nothing but the operation.
static int describe(pb_dnn_stream *s, pb_dnn_plan *p, pb_error *e) {
  pb_dnn *dnn = s->dnn;
  CALL(dnn, cudnnBackendCreateDescriptor, PB_DNN_GRAPH, &p->graph);
  SET(dnn, p->graph, PB_DNN_GRAPH_HANDLE, PB_DNN_TYPE_HANDLE, 1, &s->handle);
  SET(dnn, p->graph, PB_DNN_GRAPH_OPS, PB_DNN_TYPE_DESCRIPTOR, 1, &p->sdpa);
  CALL(dnn, cudnnBackendFinalize, p->graph);
  return 0;
}

// choose makes the plan of the configuration that the library holds best.
static int choose(pb_dnn_stream *s, pb_dnn_plan *p, uint64_t most, pb_error *e) {
  pb_dnn *dnn = s->dnn;
  cudnnBackendHeurMode_t mode = PB_DNN_MODE_A;
  int64_t count = 0, bytes = 0;
  CALL(dnn, cudnnBackendCreateDescriptor, PB_DNN_ENGINEHEUR, &p->heuristic);
  SET(dnn, p->heuristic, PB_DNN_HEUR_GRAPH, PB_DNN_TYPE_DESCRIPTOR, 1, &p->graph);
  SET(dnn, p->heuristic, PB_DNN_HEUR_MODE, PB_DNN_TYPE_HEUR_MODE, 1, &mode);
  CALL(dnn, cudnnBackendFinalize, p->heuristic);
  CALL(dnn, cudnnBackendCreateDescriptor, PB_DNN_ENGINECFG, &p->config);
  CALL(dnn, cudnnBackendGetAttribute, p->heuristic, PB_DNN_HEUR_RESULTS, PB_DNN_TYPE_DESCRIPTOR, 1, &count, &p->config);
  if (count < 1) return failed(dnn, PB_DNN_NOT_SUPPORTED, "cudnnBackendGetAttribute", e);
  CALL(dnn, cudnnBackendCreateDescriptor, PB_DNN_PLAN, &p->plan);
  SET(dnn, p->plan, PB_DNN_PLAN_HANDLE, PB_DNN_TYPE_HANDLE, 1, &s->handle);
  SET(dnn, p->plan, PB_DNN_PLAN_CONFIG, PB_DNN_TYPE_DESCRIPTOR, 1, &p->config);
  CALL(dnn, cudnnBackendFinalize, p->plan);
  CALL(dnn, cudnnBackendGetAttribute, p->plan, PB_DNN_PLAN_WORKSPACE, PB_DNN_TYPE_INT64, 1, &count, &bytes);
  if ((uint64_t)bytes <= most) return 0;
  e->code = PB_DNN_CODES + PB_DNN_NOT_SUPPORTED;
  e->kind = PB_KIND_REFUSED;
  snprintf(e->text, sizeof e->text, "a workspace of %lld bytes", (long long)bytes);
  return e->code;
}

void pb_dnn_plan_new(pb_dnn_stream *s, const pb_dnn_shape *shape, uint64_t most, pb_dnn_plan **out, pb_error *e) {
  *out = NULL;
  if (pb_current(s->device, e)) return;
  pb_dnn_plan *p = calloc(1, sizeof *p);
  p->stats = shape->stats;
  if (tensors(s->dnn, p, shape, e) || operation(s->dnn, p, e) || describe(s, p, e) || choose(s, p, most, e))
    pb_dnn_plan_free(s, p);
  else
    *out = p;
}

void pb_dnn_plan_free(pb_dnn_stream *s, pb_dnn_plan *p) {
  cudnnBackendDescriptor_t all[] = {p->plan, p->config, p->heuristic, p->graph, p->sdpa};
  for (size_t i = 0; i < sizeof all / sizeof *all; i++)
    if (all[i]) s->dnn->cudnnBackendDestroyDescriptor(all[i]);
  for (int i = Q; i <= TENSORS; i++)
    if (p->tensor[i]) s->dnn->cudnnBackendDestroyDescriptor(p->tensor[i]);
  free(p);
}

static int execute(pb_dnn_stream *s, pb_dnn_plan *p, cudnnBackendDescriptor_t pack, void **at, void *workspace, pb_error *e) {
  pb_dnn *dnn = s->dnn;
  const int64_t ids[] = {Q, K, V, O, SCALE, STATS};
  int64_t count = p->stats ? STATS : SCALE;
  SET(dnn, pack, PB_DNN_PACK_IDS, PB_DNN_TYPE_INT64, count, ids);
  SET(dnn, pack, PB_DNN_PACK_POINTERS, PB_DNN_TYPE_VOID_PTR, count, at);
  SET(dnn, pack, PB_DNN_PACK_WORKSPACE, PB_DNN_TYPE_VOID_PTR, 1, &workspace);
  CALL(dnn, cudnnBackendFinalize, pack);
  CALL(dnn, cudnnBackendExecute, s->handle, p->plan, pack);
  return 0;
}

#define AT(address) ((void *)(uintptr_t)(address))

int pb_dnn_attend(pb_dnn_stream *s, pb_dnn_plan *p, float scale, uint64_t q, uint64_t k, uint64_t v, uint64_t o, uint64_t lse, uint64_t workspace,
                  pb_error *e) {
  cudnnBackendDescriptor_t pack;
  void *at[] = {AT(q), AT(k), AT(v), AT(o), &scale, AT(lse)};
  if (pb_current(s->device, e)) return e->code;
  e->code = 0;
  CALL(s->dnn, cudnnBackendCreateDescriptor, PB_DNN_VARIANT_PACK, &pack);
  int bad = execute(s, p, pack, at, AT(workspace), e);
  s->dnn->cudnnBackendDestroyDescriptor(pack);
  return bad;
}
