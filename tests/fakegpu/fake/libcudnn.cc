// A libcudnn.so.9 without a GPU: attention on the CPU, in the order of the fake device's streams, through the backend's descriptors. It takes what a caller
// may rely on in the real one and refuses all else: attributes it does not know or of another type or count than NVIDIA's header says, descriptors that are
// changed after they are finalized or used before, shapes that do not fit together, operands beyond their memory or not aligned as promised. The workspace is
// filled with NaN while attention runs. There is no engine for heads of less than 32 elements, and for 61 queries it wants a large workspace, for callers must
// do without now and then. To make a handle waits for the device.
#pragma GCC optimize("O3")
#include "cudnn9.h"

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "device.h"

struct cudnnContext {
  CUcontext context;
  CUstream stream = nullptr;
};

namespace {

struct descriptor {
  int kind;
  bool final = false;
  std::map<int, std::vector<char>> at = {};

  bool has(int name) const { return at.count(name); }
  template <class T>
  T get(int name, size_t i = 0) const {
    T v;
    memcpy(&v, at.at(name).data() + i * sizeof(T), sizeof(T));
    return v;
  }
  size_t count(int name, size_t size) const { return has(name) ? at.at(name).size() / size : 0; }
};

// What a descriptor may have: how many elements of which type, of which kind where they are descriptors.
struct rule {
  int kind, name, type;
  int64_t least, most;
  bool required;
  int of;
};
const rule rules[] = {
    {PB_DNN_TENSOR, PB_DNN_UNIQUE_ID, PB_DNN_TYPE_INT64, 1, 1, true, 0},
    {PB_DNN_TENSOR, PB_DNN_DATA_TYPE, PB_DNN_TYPE_DATA_TYPE, 1, 1, true, 0},
    {PB_DNN_TENSOR, PB_DNN_ALIGNMENT, PB_DNN_TYPE_INT64, 1, 1, true, 0},
    {PB_DNN_TENSOR, PB_DNN_DIMENSIONS, PB_DNN_TYPE_INT64, 4, 4, true, 0},
    {PB_DNN_TENSOR, PB_DNN_STRIDES, PB_DNN_TYPE_INT64, 4, 4, true, 0},
    {PB_DNN_TENSOR, PB_DNN_BY_VALUE, PB_DNN_TYPE_BOOLEAN, 1, 1, false, 0},
    {PB_DNN_SDPA, PB_DNN_SDPA_Q, PB_DNN_TYPE_DESCRIPTOR, 1, 1, true, PB_DNN_TENSOR},
    {PB_DNN_SDPA, PB_DNN_SDPA_K, PB_DNN_TYPE_DESCRIPTOR, 1, 1, true, PB_DNN_TENSOR},
    {PB_DNN_SDPA, PB_DNN_SDPA_V, PB_DNN_TYPE_DESCRIPTOR, 1, 1, true, PB_DNN_TENSOR},
    {PB_DNN_SDPA, PB_DNN_SDPA_O, PB_DNN_TYPE_DESCRIPTOR, 1, 1, true, PB_DNN_TENSOR},
    {PB_DNN_SDPA, PB_DNN_SDPA_STATS, PB_DNN_TYPE_DESCRIPTOR, 1, 1, false, PB_DNN_TENSOR},
    {PB_DNN_SDPA, PB_DNN_SDPA_SCALE, PB_DNN_TYPE_DESCRIPTOR, 1, 1, false, PB_DNN_TENSOR},
    {PB_DNN_GRAPH, PB_DNN_GRAPH_HANDLE, PB_DNN_TYPE_HANDLE, 1, 1, true, 0},
    {PB_DNN_GRAPH, PB_DNN_GRAPH_OPS, PB_DNN_TYPE_DESCRIPTOR, 1, 1, true, PB_DNN_SDPA},
    {PB_DNN_ENGINEHEUR, PB_DNN_HEUR_GRAPH, PB_DNN_TYPE_DESCRIPTOR, 1, 1, true, PB_DNN_GRAPH},
    {PB_DNN_ENGINEHEUR, PB_DNN_HEUR_MODE, PB_DNN_TYPE_HEUR_MODE, 1, 1, true, 0},
    {PB_DNN_PLAN, PB_DNN_PLAN_HANDLE, PB_DNN_TYPE_HANDLE, 1, 1, true, 0},
    {PB_DNN_PLAN, PB_DNN_PLAN_CONFIG, PB_DNN_TYPE_DESCRIPTOR, 1, 1, true, PB_DNN_ENGINECFG},
    {PB_DNN_VARIANT_PACK, PB_DNN_PACK_IDS, PB_DNN_TYPE_INT64, 1, 16, true, 0},
    {PB_DNN_VARIANT_PACK, PB_DNN_PACK_POINTERS, PB_DNN_TYPE_VOID_PTR, 1, 16, true, 0},
    {PB_DNN_VARIANT_PACK, PB_DNN_PACK_WORKSPACE, PB_DNN_TYPE_VOID_PTR, 1, 1, false, 0},
};

// An engine configuration keeps its graph under this name, which is none of the library's.
const int graph_of = -1;

thread_local std::string last;

cudnnStatus_t refuse(cudnnStatus_t s, const std::string &why) {
  last = why;
  fakegpu::say("cudnn: " + why);
  return s;
}

size_t size_of(int type) {
  switch (type) {
    case PB_DNN_TYPE_DATA_TYPE:
    case PB_DNN_TYPE_HEUR_MODE: return 4;
    case PB_DNN_TYPE_BOOLEAN: return 1;
  }
  return 8;
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

struct operand {
  int64_t id, dims[4], strides[4], align;
  int type;
  bool value;

  explicit operator bool() const { return id >= 0; }
  bool is(int want, int64_t b, int64_t h, int64_t l, int64_t d) const {
    return type == want && dims[0] == b && dims[1] == h && dims[2] == l && dims[3] == d;
  }
  uint64_t bytes() const {
    uint64_t n = 1;
    for (int i = 0; i < 4; i++) n += (dims[i] - 1) * strides[i];
    return n * (type == PB_DNN_FLOAT ? 4 : 2);
  }
};

operand read(const descriptor *d, int name) {
  operand o = {-1, {}, {}, 0, 0, false};
  if (!d->has(name)) return o;
  const descriptor *t = d->get<const descriptor *>(name);
  o.id = t->get<int64_t>(PB_DNN_UNIQUE_ID);
  o.align = t->get<int64_t>(PB_DNN_ALIGNMENT);
  o.type = t->get<int>(PB_DNN_DATA_TYPE);
  o.value = t->has(PB_DNN_BY_VALUE) && t->get<char>(PB_DNN_BY_VALUE);
  for (int i = 0; i < 4; i++) o.dims[i] = t->get<int64_t>(PB_DNN_DIMENSIONS, i), o.strides[i] = t->get<int64_t>(PB_DNN_STRIDES, i);
  return o;
}

struct attention {
  operand q, k, v, o, scale, stats;
  explicit attention(const descriptor *d)
      : q(read(d, PB_DNN_SDPA_Q)), k(read(d, PB_DNN_SDPA_K)), v(read(d, PB_DNN_SDPA_V)), o(read(d, PB_DNN_SDPA_O)), scale(read(d, PB_DNN_SDPA_SCALE)),
        stats(read(d, PB_DNN_SDPA_STATS)) {}
  uint64_t needs() const { return q.dims[2] == 61 ? 2 << 20 : 256 + 16 * (q.dims[2] % 64); }
};

// wrong says what is inconsistent in a descriptor that has what it needs, "" if nothing.
std::string wrong(const descriptor *d) {
  if (d->kind == PB_DNN_TENSOR) {
    int type = d->get<int>(PB_DNN_DATA_TYPE);
    if (type != PB_DNN_FLOAT && type != PB_DNN_BFLOAT16) return "a tensor of another type";
    if (d->get<int64_t>(PB_DNN_ALIGNMENT) % (type == PB_DNN_FLOAT ? 4 : 2)) return "an alignment that is not whole elements";
    for (int i = 0; i < 4; i++)
      if (d->get<int64_t>(PB_DNN_DIMENSIONS, i) < 1 || d->get<int64_t>(PB_DNN_STRIDES, i) < 1) return "a dimension or stride that is not positive";
  } else if (d->kind == PB_DNN_SDPA) {
    attention a(d);
    int64_t b = a.q.dims[0], h = a.q.dims[1], l = a.q.dims[2], n = a.q.dims[3], keys = a.k.dims[2];
    if (!a.q.is(PB_DNN_BFLOAT16, b, h, l, n) || !a.k.is(PB_DNN_BFLOAT16, b, h, keys, n) || !a.v.is(PB_DNN_BFLOAT16, b, h, keys, n) ||
        !a.o.is(PB_DNN_BFLOAT16, b, h, l, n))
      return "q, k, v and o that do not fit together";
    for (const operand *t : {&a.q, &a.k, &a.v, &a.o})
      if (t->strides[3] != 1 || t->strides[0] % 8 || t->strides[1] % 8 || t->strides[2] % 8 || t->align != 16 || t->value)
        return "heads that are not beside each other in rows of 16 bytes";
    if (a.scale && (!a.scale.is(PB_DNN_FLOAT, 1, 1, 1, 1) || !a.scale.value)) return "a scale that is not one number by value";
    if (a.stats && (!a.stats.is(PB_DNN_FLOAT, b, h, l, 1) || a.stats.value)) return "statistics that are not one number a query";
    std::set<int64_t> ids = {a.q.id, a.k.id, a.v.id, a.o.id};
    if (a.scale) ids.insert(a.scale.id);
    if (a.stats) ids.insert(a.stats.id);
    if (ids.size() != 4u + !!a.scale + !!a.stats) return "two tensors of one id";
  } else if (d->kind == PB_DNN_ENGINEHEUR) {
    if (d->get<int>(PB_DNN_HEUR_MODE) != PB_DNN_MODE_A) return "an unknown mode";
  } else if (d->kind == PB_DNN_PLAN) {
    if (!d->get<descriptor *>(PB_DNN_PLAN_CONFIG)->has(graph_of)) return "a configuration of nothing";
  } else if (d->kind == PB_DNN_VARIANT_PACK) {
    if (d->count(PB_DNN_PACK_IDS, 8) != d->count(PB_DNN_PACK_POINTERS, 8)) return "another number of ids than of addresses";
  }
  return "";
}

const descriptor *operation(const descriptor *config) {
  return config->get<descriptor *>(graph_of)->get<descriptor *>(PB_DNN_GRAPH_OPS);
}

struct call {
  attention a;
  float scale;
  const uint16_t *q, *k, *v;
  uint16_t *o;
  float *stats;
  void *workspace;
};

void run(const call &c) {
  const attention &a = c.a;
  memset(c.workspace, 0xff, a.needs());
  int64_t keys = a.k.dims[2], n = a.q.dims[3];
  std::vector<float> p(keys), out(n);
  auto row = [](const auto *at, const operand &t, int64_t b, int64_t h, int64_t l) { return at + b * t.strides[0] + h * t.strides[1] + l * t.strides[2]; };
  for (int64_t b = 0; b < a.q.dims[0]; b++)
    for (int64_t h = 0; h < a.q.dims[1]; h++)
      for (int64_t l = 0; l < a.q.dims[2]; l++) {
        const uint16_t *q = row(c.q, a.q, b, h, l);
        float most = -INFINITY, sum = 0;
        for (int64_t j = 0; j < keys; j++) {
          const uint16_t *k = row(c.k, a.k, b, h, j);
          float s = 0;
          for (int64_t i = 0; i < n; i++) s += widen(q[i]) * widen(k[i]);
          p[j] = s * c.scale;
          if (!(p[j] <= most)) most = p[j];
        }
        std::fill(out.begin(), out.end(), 0.f);
        for (int64_t j = 0; j < keys; j++) {
          const uint16_t *v = row(c.v, a.v, b, h, j);
          p[j] = std::exp(p[j] - most);
          sum += p[j];
          for (int64_t i = 0; i < n; i++) out[i] += p[j] * widen(v[i]);
        }
        uint16_t *o = const_cast<uint16_t *>(row(c.o, a.o, b, h, l));
        for (int64_t i = 0; i < n; i++) o[i] = narrow(out[i] / sum);
        if (a.stats) *const_cast<float *>(row(c.stats, a.stats, b, h, l)) = most + std::log(sum);
      }
  memset(c.workspace, 0xff, a.needs());
}

}  // namespace

#pragma GCC visibility push(default)
extern "C" {

size_t cudnnGetVersion(void) {
  const char *v = getenv("FAKEGPU_CUDNN");
  return v && *v ? strtoull(v, nullptr, 10) : 91301;
}

size_t cudnnGetCudartVersion(void) {
  const char *v = getenv("FAKEGPU_CUDNN_CUDA");
  return v && *v ? strtoull(v, nullptr, 10) : 12090;
}

const char *cudnnGetErrorString(cudnnStatus_t code) {
#define NAME(name, theirs, value) \
  if (code == value && !strncmp(#theirs, "CUDNN_STATUS_", 13)) return #theirs;
  PB_DNN_CONSTANTS(NAME)
  return "unknown";
}

void cudnnGetLastErrorString(char *message, size_t most) { snprintf(message, most, "%s", last.c_str()); }

cudnnStatus_t cudnnCreate(cudnnHandle_t *out) {
  if (!fakegpu::context()) return refuse(PB_DNN_NOT_INITIALIZED, "no context is current");
  if (fakegpu::synchronize()) return refuse(PB_DNN_EXECUTION_FAILED, "the device could not be waited for");
  *out = new cudnnContext{fakegpu::context()};
  return PB_DNN_SUCCESS;
}

cudnnStatus_t cudnnDestroy(cudnnHandle_t h) {
  delete h;
  return PB_DNN_SUCCESS;
}

cudnnStatus_t cudnnSetStream(cudnnHandle_t h, cudaStream_t stream) {
  h->stream = stream;
  return PB_DNN_SUCCESS;
}

cudnnStatus_t cudnnBackendCreateDescriptor(cudnnBackendDescriptorType_t kind, cudnnBackendDescriptor_t *out) {
  bool known = kind == PB_DNN_ENGINECFG;
  for (const rule &r : rules) known |= r.kind == kind;
  if (getenv("FAKEGPU_CUDNN_BARE")) return refuse(PB_DNN_NO_SUBLIBRARY, "Unable to load any of {libcudnn_graph.so.9}");
  if (!known) return refuse(PB_DNN_NOT_SUPPORTED, "unknown kind of descriptor: " + std::to_string(kind));
  *out = new descriptor{kind};
  return PB_DNN_SUCCESS;
}

cudnnStatus_t cudnnBackendDestroyDescriptor(cudnnBackendDescriptor_t d) {
  delete (descriptor *)d;
  return PB_DNN_SUCCESS;
}

cudnnStatus_t cudnnBackendSetAttribute(cudnnBackendDescriptor_t desc, cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type, int64_t count,
                                       const void *from) {
  descriptor *d = (descriptor *)desc;
  if (d->final) return refuse(PB_DNN_BAD_PARAM, "a descriptor that is finalized");
  for (const rule &r : rules) {
    if (r.kind != d->kind || r.name != name) continue;
    if (r.type != type || count < r.least || count > r.most || !from)
      return refuse(PB_DNN_BAD_PARAM, "attribute " + std::to_string(name) + " as " + std::to_string(count) + " of type " + std::to_string(type));
    for (int64_t i = 0; r.of && i < count; i++) {
      const descriptor *t = ((const descriptor *const *)from)[i];
      if (!t || t->kind != r.of) return refuse(PB_DNN_BAD_PARAM, "a descriptor of another kind");
      if (!t->final && t->kind != PB_DNN_ENGINECFG) return refuse(PB_DNN_NOT_FINALIZED, "a descriptor that is not finalized");
    }
    d->at[name].assign((const char *)from, (const char *)from + count * size_of(type));
    return PB_DNN_SUCCESS;
  }
  return refuse(PB_DNN_NOT_SUPPORTED, "unknown attribute " + std::to_string(name) + " of a descriptor of kind " + std::to_string(d->kind));
}

cudnnStatus_t cudnnBackendFinalize(cudnnBackendDescriptor_t desc) {
  descriptor *d = (descriptor *)desc;
  for (const rule &r : rules)
    if (r.kind == d->kind && r.required && !d->has(r.name)) return refuse(PB_DNN_BAD_PARAM, "attribute " + std::to_string(r.name) + " is missing");
  std::string why = wrong(d);
  if (!why.empty()) return refuse(PB_DNN_BAD_PARAM, why);
  d->final = true;
  return PB_DNN_SUCCESS;
}

cudnnStatus_t cudnnBackendGetAttribute(cudnnBackendDescriptor_t const desc, cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type, int64_t most,
                                       int64_t *count, void *to) {
  const descriptor *d = (const descriptor *)desc;
  if (!d->final) return refuse(PB_DNN_NOT_FINALIZED, "a descriptor that is not finalized");
  if (d->kind == PB_DNN_ENGINEHEUR && name == PB_DNN_HEUR_RESULTS && type == PB_DNN_TYPE_DESCRIPTOR && most >= 1) {
    descriptor *config = *(descriptor **)to, *graph = d->get<descriptor *>(PB_DNN_HEUR_GRAPH);
    if (!config || config->kind != PB_DNN_ENGINECFG) return refuse(PB_DNN_BAD_PARAM, "results that are not configurations");
    *count = attention(graph->get<descriptor *>(PB_DNN_GRAPH_OPS)).q.dims[3] >= 32;
    if (*count) config->at[graph_of].assign((const char *)&graph, (const char *)&graph + sizeof graph);
    return PB_DNN_SUCCESS;
  }
  if (d->kind == PB_DNN_PLAN && name == PB_DNN_PLAN_WORKSPACE && type == PB_DNN_TYPE_INT64 && most == 1) {
    *count = 1;
    *(int64_t *)to = attention(operation(d->get<descriptor *>(PB_DNN_PLAN_CONFIG))).needs();
    return PB_DNN_SUCCESS;
  }
  return refuse(PB_DNN_NOT_SUPPORTED, "unknown attribute " + std::to_string(name));
}

cudnnStatus_t cudnnBackendExecute(cudnnHandle_t h, cudnnBackendDescriptor_t plan, cudnnBackendDescriptor_t desc) {
  const descriptor *p = (const descriptor *)plan, *pack = (const descriptor *)desc;
  if (p->kind != PB_DNN_PLAN || pack->kind != PB_DNN_VARIANT_PACK || !p->final || !pack->final)
    return refuse(PB_DNN_NOT_FINALIZED, "no plan, or a variant pack that is not finalized");
  if (h->context != fakegpu::context() || p->get<cudnnHandle_t>(PB_DNN_PLAN_HANDLE) != h)
    return refuse(PB_DNN_BAD_PARAM, "the context of the handle is not current, or the plan is another handle's");
  attention a(operation(p->get<descriptor *>(PB_DNN_PLAN_CONFIG)));
  std::map<int64_t, char *> at;
  for (size_t i = 0; i < pack->count(PB_DNN_PACK_IDS, 8); i++) at[pack->get<int64_t>(PB_DNN_PACK_IDS, i)] = pack->get<char *>(PB_DNN_PACK_POINTERS, i);
  std::map<int64_t, const operand *> want;
  for (const operand *t : {&a.q, &a.k, &a.v, &a.o, &a.scale, &a.stats})
    if (*t) want[t->id] = t;
  if (at.size() != want.size()) return refuse(PB_DNN_BAD_PARAM, "addresses of other tensors than the plan's");
  for (auto [id, t] : want) {
    if (!at.count(id)) return refuse(PB_DNN_BAD_PARAM, "a tensor without an address");
    if (t->value ? fakegpu::device_memory(at[id], 4) : !fakegpu::device_memory(at[id], t->bytes()) || (uintptr_t)at[id] % t->align)
      return refuse(PB_DNN_BAD_PARAM, "an operand beyond its memory, or not aligned");
  }
  char *workspace = pack->has(PB_DNN_PACK_WORKSPACE) ? pack->get<char *>(PB_DNN_PACK_WORKSPACE) : nullptr;
  if (!fakegpu::device_memory(workspace, a.needs())) return refuse(PB_DNN_BAD_PARAM, "a workspace that is too small or no memory");
  call c{a,
         a.scale ? *(const float *)at[a.scale.id] : 1.f,
         (const uint16_t *)at[a.q.id],
         (const uint16_t *)at[a.k.id],
         (const uint16_t *)at[a.v.id],
         (uint16_t *)at[a.o.id],
         a.stats ? (float *)at[a.stats.id] : nullptr,
         workspace};
  return fakegpu::enqueue(h->stream, [c] { run(c); }) == PB_SUCCESS ? PB_DNN_SUCCESS : PB_DNN_EXECUTION_FAILED;
}

}  // extern "C"
