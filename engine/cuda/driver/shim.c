#define _GNU_SOURCE
#include "shim.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MEMBER(name, params) CUresult(*name) params;
struct pb_driver {
  PB_FUNCTIONS(MEMBER)
};
#undef MEMBER

static int kind(CUresult code) {
  switch (code) {
    case PB_OUT_OF_MEMORY:
      return PB_KIND_MEMORY;
    case PB_INVALID_VALUE:
    case PB_NO_DEVICE:
    case PB_INVALID_DEVICE:
    case PB_INVALID_HANDLE:
    case PB_NOT_FOUND:
    case PB_NOT_READY:
    case PB_INVALID_IMAGE:
    case PB_NO_BINARY:
    case PB_INVALID_PTX:
    case PB_NO_COMPILER:
    case PB_UNSUPPORTED_PTX:
    case PB_COMPILER_OFF:
    case PB_OUT_OF_RESOURCES:
    case PB_PEER_UNSUPPORTED:
    case PB_PEER_ENABLED:
    case PB_TOO_MANY_PEERS:
      return PB_KIND_REFUSED;
  }
  return code >= PB_CAPTURE_UNSUPPORTED && code <= PB_GRAPH_UPDATE_FAILURE ? PB_KIND_CAPTURE : PB_KIND_LOST;
}

static int failed(pb_driver *d, CUresult code, const char *call, pb_error *e) {
  e->code = code;
  e->kind = kind(code);
  snprintf(e->call, sizeof e->call, "%s", call);
  const char *name = NULL, *text = NULL;
  d->cuGetErrorName(code, &name);
  d->cuGetErrorString(code, &text);
  snprintf(e->text, sizeof e->text, "%s: %s", name ? name : "unknown error", text ? text : "no text");
  return code;
}

// CALL runs a function of the driver and leaves the entry when it fails.
#define CALL(d, name, ...)                              \
  do {                                                  \
    CUresult r = (d)->name(__VA_ARGS__);                \
    if (r != PB_SUCCESS) return failed(d, r, #name, e); \
  } while (0)

// ON is CALL with the device's context.
#define ON(d, name, ...)                                   \
  do {                                                     \
    __atomic_fetch_add(&(d)->calls, 1, __ATOMIC_RELAXED);  \
    CALL((d)->driver, cuCtxSetCurrent, (d)->context);      \
    CALL((d)->driver, name, __VA_ARGS__);                  \
  } while (0)

// ENTRY is an entry that is one call of the driver.
#define ENTRY(entry, params, ...) \
  int entry params {              \
    ON(d, __VA_ARGS__);           \
    return 0;                     \
  }

#define STREAM(s) ((CUstream)(uintptr_t)(s))
#define EVENT(v) ((CUevent)(uintptr_t)(v))

int pb_library_open(const char *path, const char *version, int out, const char *runtime, void **library, int *number, int *cuda, char where[4096],
                    pb_error *e) {
  e->code = -1;
  void *lib = dlopen(path, RTLD_NOW | RTLD_LOCAL), *f = lib ? dlsym(lib, version) : NULL;
  if (!f) {
    snprintf(e->text, sizeof e->text, "%s", dlerror());
    if (lib) dlclose(lib);
    return -1;
  }
  Dl_info info;
  snprintf(where, 4096, "%s", dladdr(f, &info) ? info.dli_fname : path);
  *number = 0;
  if (out)
    ((int (*)(int *))f)(number);
  else
    *number = (int)((size_t (*)(void))f)();
  void *built = runtime ? dlsym(lib, runtime) : NULL;
  *cuda = built ? (int)((size_t (*)(void))built)() : 0;
  *library = lib;
  return e->code = 0;
}

int pb_driver_open(const char *path, pb_driver **out, pb_error *e) {
  e->code = -1;
  snprintf(e->call, sizeof e->call, "dlopen");
  void *lib = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (!lib) {
    snprintf(e->text, sizeof e->text, "%s", dlerror());
    return -1;
  }
  pb_driver *d = calloc(1, sizeof *d);
#define LOAD(name, params)                                                          \
  *(void **)&d->name = dlsym(lib, #name);                                           \
  if (!d->name) {                                                                   \
    snprintf(e->call, sizeof e->call, "dlsym");                                     \
    snprintf(e->text, sizeof e->text, "%s has no %s: too old a driver", path, #name); \
    free(d);                                                                        \
    dlclose(lib);                                                                   \
    return -1;                                                                      \
  }
  PB_FUNCTIONS(LOAD)
#undef LOAD
  CUresult r = d->cuInit(0);
  if (r != PB_SUCCESS) {
    failed(d, r, "cuInit", e);
    free(d);
    dlclose(lib);
    return r;
  }
  *out = d;
  e->code = 0;
  return 0;
}

int pb_driver_version(pb_driver *d, int *out, pb_error *e) {
  CALL(d, cuDriverGetVersion, out);
  return 0;
}

int pb_device_count(pb_driver *d, int *out, pb_error *e) {
  CALL(d, cuDeviceGetCount, out);
  return 0;
}

int pb_device_info(pb_driver *d, int index, pb_info *out, pb_error *e) {
  CUdevice n;
  size_t memory = 0;
  CALL(d, cuDeviceGet, &n, index);
  CALL(d, cuDeviceGetName, out->name, sizeof out->name, n);
  CALL(d, cuDeviceGetAttribute, &out->major, PB_ATTR_MAJOR, n);
  CALL(d, cuDeviceGetAttribute, &out->minor, PB_ATTR_MINOR, n);
  CALL(d, cuDeviceGetAttribute, &out->multiprocessors, PB_ATTR_MULTIPROCESSORS, n);
  CALL(d, cuDeviceGetAttribute, &out->shared_optin, PB_ATTR_SHARED_OPTIN, n);
  CALL(d, cuDeviceTotalMem_v2, &memory, n);
  out->memory = memory;
  return 0;
}

static int current(pb_device *d, pb_error *e) {
  __atomic_fetch_add(&d->calls, 1, __ATOMIC_RELAXED);
  CALL(d->driver, cuCtxSetCurrent, d->context);
  return 0;
}

int pb_device_open(pb_driver *d, int index, pb_device **out, pb_error *e) {
  pb_device v = {.driver = d, .current = current};
  CALL(d, cuDeviceGet, &v.number, index);
  CALL(d, cuDevicePrimaryCtxRetain, &v.context, v.number);
  *out = malloc(sizeof v);
  **out = v;
  return 0;
}

int pb_device_close(pb_device *d, pb_error *e) {
  pb_driver *driver = d->driver;
  CUdevice number = d->number;
  driver->cuCtxSetCurrent(NULL);
  free(d);
  CALL(driver, cuDevicePrimaryCtxRelease_v2, number);
  return 0;
}

int pb_memory(pb_device *d, uint64_t *free_bytes, uint64_t *total, pb_error *e) {
  size_t f = 0, t = 0;
  ON(d, cuMemGetInfo_v2, &f, &t);
  *free_bytes = f;
  *total = t;
  return 0;
}

int pb_alloc(pb_device *d, uint64_t *out, uint64_t bytes, pb_error *e) {
  CUdeviceptr p = 0;
  ON(d, cuMemAlloc_v2, &p, bytes);
  *out = p;
  return 0;
}

ENTRY(pb_free, (pb_device *d, uint64_t at, pb_error *e), cuMemFree_v2, at)
ENTRY(pb_host_alloc, (pb_device *d, void **out, uint64_t bytes, pb_error *e), cuMemHostAlloc, out, bytes, 0)
ENTRY(pb_host_free, (pb_device *d, void *at, pb_error *e), cuMemFreeHost, at)
ENTRY(pb_upload, (pb_device *d, uint64_t stream, uint64_t dst, const void *pinned, uint64_t bytes, pb_error *e),
      cuMemcpyHtoDAsync_v2, dst, pinned, bytes, STREAM(stream))
ENTRY(pb_download, (pb_device *d, uint64_t stream, void *pinned, uint64_t src, uint64_t bytes, pb_error *e),
      cuMemcpyDtoHAsync_v2, pinned, src, bytes, STREAM(stream))
ENTRY(pb_move, (pb_device *d, uint64_t stream, uint64_t dst, uint64_t src, uint64_t bytes, pb_error *e),
      cuMemcpyDtoDAsync_v2, dst, src, bytes, STREAM(stream))

// Whether d may read the memory of peer; what that takes is switched on.
int pb_peer(pb_device *d, pb_device *peer, int *reaches, pb_error *e) {
  *reaches = 0;
  CALL(d->driver, cuDeviceCanAccessPeer, reaches, d->number, peer->number);
  if (!*reaches) return 0;
  CALL(d->driver, cuCtxSetCurrent, d->context);
  CUresult r = d->driver->cuCtxEnablePeerAccess(peer->context, 0);
  if (r == PB_PEER_UNSUPPORTED || r == PB_TOO_MANY_PEERS) *reaches = 0;
  return r == PB_SUCCESS || r == PB_PEER_ENABLED || !*reaches ? 0 : failed(d->driver, r, "cuCtxEnablePeerAccess", e);
}

// From the memory of another device: straight where d reaches it, else the driver passes it through the host.
ENTRY(pb_move_peer, (pb_device *d, uint64_t stream, uint64_t dst, pb_device *from, uint64_t src, uint64_t bytes, pb_error *e),
      cuMemcpyPeerAsync, dst, d->context, src, from->context, bytes, STREAM(stream))
ENTRY(pb_set, (pb_device *d, uint64_t stream, uint64_t dst, int value, uint64_t bytes, pb_error *e),
      cuMemsetD8Async, dst, (unsigned char)value, bytes, STREAM(stream))

// The address of pinned memory is the same on the device: all its memory lies in one address space.
ENTRY(pb_write, (pb_device *d, uint64_t stream, void *pinned, uint32_t value, pb_error *e),
      cuStreamWriteValue32_v2, STREAM(stream), (CUdeviceptr)(uintptr_t)pinned, value, PB_WRITE_DEFAULT)

// The driver takes a priority beyond those it has as the nearest one; lower numbers go first.
int pb_stream_new(pb_device *d, int urgent, uint64_t *out, pb_error *e) {
  CUstream s;
  ON(d, cuStreamCreateWithPriority, &s, PB_STREAM_NON_BLOCKING, urgent ? -100 : 0);
  *out = (uint64_t)(uintptr_t)s;
  return 0;
}

ENTRY(pb_stream_free, (pb_device *d, uint64_t stream, pb_error *e), cuStreamDestroy_v2, STREAM(stream))
ENTRY(pb_stream_sync, (pb_device *d, uint64_t stream, pb_error *e), cuStreamSynchronize, STREAM(stream))
ENTRY(pb_stream_wait, (pb_device *d, uint64_t stream, uint64_t event, pb_error *e), cuStreamWaitEvent, STREAM(stream), EVENT(event), 0)
ENTRY(pb_device_sync, (pb_device *d, pb_error *e), cuCtxSynchronize)

int pb_event_new(pb_device *d, uint64_t *out, int timing, pb_error *e) {
  CUevent v;
  ON(d, cuEventCreate, &v, timing ? PB_EVENT_DEFAULT : PB_EVENT_NO_TIMING);
  *out = (uint64_t)(uintptr_t)v;
  return 0;
}

ENTRY(pb_event_free, (pb_device *d, uint64_t event, pb_error *e), cuEventDestroy_v2, EVENT(event))
ENTRY(pb_event_record, (pb_device *d, uint64_t event, uint64_t stream, pb_error *e), cuEventRecord, EVENT(event), STREAM(stream))
ENTRY(pb_event_sync, (pb_device *d, uint64_t event, pb_error *e), cuEventSynchronize, EVENT(event))

int pb_event_done(pb_device *d, uint64_t event, int *done, pb_error *e) {
  CALL(d->driver, cuCtxSetCurrent, d->context);
  CUresult r = d->driver->cuEventQuery(EVENT(event));
  *done = r == PB_SUCCESS;
  return r == PB_SUCCESS || r == PB_NOT_READY ? 0 : failed(d->driver, r, "cuEventQuery", e);
}

ENTRY(pb_event_elapsed, (pb_device *d, uint64_t from, uint64_t to, float *milliseconds, pb_error *e),
      cuEventElapsedTime, milliseconds, EVENT(from), EVENT(to))

int pb_module_load(pb_device *d, const void *image, uint64_t *out, pb_error *e) {
  CUmodule m;
  ON(d, cuModuleLoadData, &m, image);
  *out = (uint64_t)(uintptr_t)m;
  return 0;
}

ENTRY(pb_module_free, (pb_device *d, uint64_t module, pb_error *e), cuModuleUnload, (CUmodule)(uintptr_t)module)

int pb_function(pb_device *d, uint64_t module, const char *name, int shared, uint64_t *out, pb_error *e) {
  CUfunction f;
  ON(d, cuModuleGetFunction, &f, (CUmodule)(uintptr_t)module, name);
  if (shared > 48 << 10) CALL(d->driver, cuFuncSetAttribute, f, PB_FUNC_MAX_SHARED, shared);
  *out = (uint64_t)(uintptr_t)f;
  return 0;
}

int pb_launch(pb_device *d, uint64_t stream, uint64_t function, unsigned x, unsigned y, unsigned z, unsigned threads, unsigned shared, void *args,
              pb_error *e) {
  void *params[1] = {args};
  ON(d, cuLaunchKernel, (CUfunction)(uintptr_t)function, x, y, z, threads, 1, 1, shared, STREAM(stream), params, NULL);
  return 0;
}

ENTRY(pb_capture_begin, (pb_device *d, uint64_t stream, pb_error *e), cuStreamBeginCapture_v2, STREAM(stream), PB_CAPTURE_RELAXED)

int pb_capture_end(pb_device *d, uint64_t stream, uint64_t *graph, pb_error *e) {
  CUgraph g = NULL;
  size_t nodes = 0;
  ON(d, cuStreamEndCapture, STREAM(stream), &g);
  ON(d, cuGraphGetNodes, g, NULL, &nodes);
  if (nodes == 0) ON(d, cuGraphDestroy, g);
  *graph = nodes == 0 ? 0 : (uint64_t)(uintptr_t)g;
  return 0;
}

int pb_graph_make(pb_device *d, uint64_t graph, uint64_t *exec, pb_error *e) {
  CUgraph g = (CUgraph)(uintptr_t)graph;
  CUgraphExec x = (CUgraphExec)(uintptr_t)*exec;
  CUgraphExecUpdateResultInfo info;
  CUresult r = PB_SUCCESS;
  if (pb_current(d, e)) return e->code;
  if (x && (r = d->driver->cuGraphExecUpdate_v2(x, g, &info)) == PB_GRAPH_UPDATE_FAILURE) {
    d->driver->cuGraphExecDestroy(x);
    x = NULL;
    r = PB_SUCCESS;
  }
  if (r == PB_SUCCESS && !x) r = d->driver->cuGraphInstantiateWithFlags(&x, g, 0);
  d->driver->cuGraphDestroy(g);
  *exec = (uint64_t)(uintptr_t)x;
  return r == PB_SUCCESS ? 0 : failed(d->driver, r, "cuGraphInstantiateWithFlags", e);
}

ENTRY(pb_graph_drop, (pb_device *d, uint64_t graph, pb_error *e), cuGraphDestroy, (CUgraph)(uintptr_t)graph)
ENTRY(pb_graph_launch, (pb_device *d, uint64_t stream, uint64_t exec, pb_error *e), cuGraphLaunch, (CUgraphExec)(uintptr_t)exec, STREAM(stream))
ENTRY(pb_graph_free, (pb_device *d, uint64_t exec, pb_error *e), cuGraphExecDestroy, (CUgraphExec)(uintptr_t)exec)

int64_t pb_calls(pb_device *d) { return __atomic_load_n(&d->calls, __ATOMIC_RELAXED); }
