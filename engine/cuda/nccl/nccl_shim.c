#include "nccl_shim.h"

#include <dlfcn.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define MEMBER(result, name, params) result(*name) params;
struct pb_nccl {
  PB_NCCL_FUNCTIONS(MEMBER)
};
#undef MEMBER

#define COMMUNICATOR(c) ((ncclComm_t)(uintptr_t)(c))

static int failed(pb_nccl *n, ncclResult_t code, const char *call, ncclComm_t c, pb_error *e) {
  e->code = code;
  snprintf(e->call, sizeof e->call, "%s", call);
  const char *text = n->ncclGetErrorString(code), *last = n->ncclGetLastError(c);
  snprintf(e->text, sizeof e->text, "%s%s%s", text ? text : "unknown error", last && *last ? ": " : "", last ? last : "");
  return code;
}

// CALL runs a function and leaves the entry when it fails; what is under way has not failed.
#define CALL(n, c, name, ...)                                                                             \
  do {                                                                                                    \
    ncclResult_t r = (n)->name(__VA_ARGS__);                                                              \
    if (r != PB_NCCL_SUCCESS && r != PB_NCCL_IN_PROGRESS) return failed(n, r, #name, COMMUNICATOR(c), e); \
  } while (0)

// The current device of the thread is the one of the context that the driver has as the current one.
static int enter(pb_device *d, pb_error *e) { return pb_current(d, e); }

int pb_nccl_open(void *library, pb_nccl **out, pb_error *e) {
  pb_nccl *n = calloc(1, sizeof *n);
#define LOAD(result, name, params)                                           \
  *(void **)&n->name = dlsym(library, #name);                                \
  if (!n->name) {                                                            \
    snprintf(e->call, sizeof e->call, "dlsym");                              \
    snprintf(e->text, sizeof e->text, "the library has no %s: too old", #name); \
    free(n);                                                                 \
    return e->code = -1;                                                     \
  }
  PB_NCCL_FUNCTIONS(LOAD)
#undef LOAD
  *out = n;
  return 0;
}

// Makes the name of a group, of 128 bytes, which all its ranks use.
int pb_nccl_id(pb_nccl *n, void *id, pb_error *e) {
  CALL(n, 0, ncclGetUniqueId, (ncclUniqueId *)id);
  return 0;
}

// Makes communicators of several groups in one call; pb_nccl_state tells when they are made. When it fails, those that were begun are in ends.
int pb_nccl_connect(pb_nccl *n, const void *ids, pb_nccl_end *ends, int count, pb_error *e) {
  ncclConfig_t config = {.size = sizeof config,
                         .magic = PB_NCCL_MAGIC,
                         .version = PB_NCCL_CONFIG_VERSION,
                         .blocking = 0,
                         .cgaClusterSize = PB_NCCL_UNDEFINED,
                         .minCTAs = PB_NCCL_UNDEFINED,
                         .maxCTAs = PB_NCCL_UNDEFINED,
                         .netName = NULL,
                         .splitShare = PB_NCCL_UNDEFINED};
  ncclComm_t *made = calloc(count, sizeof *made);
  ncclResult_t r = n->ncclGroupStart(), end;
  for (int i = 0; i < count && (r == PB_NCCL_SUCCESS || r == PB_NCCL_IN_PROGRESS); i++) {
    if (enter(ends[i].device, e)) break;
    config.maxCTAs = ends[i].most ? ends[i].most : PB_NCCL_UNDEFINED;
    r = n->ncclCommInitRankConfig(&made[i], ends[i].size, ((const ncclUniqueId *)ids)[ends[i].id], ends[i].rank, &config);
  }
  end = n->ncclGroupEnd();
  if (r == PB_NCCL_SUCCESS || r == PB_NCCL_IN_PROGRESS) r = end;
  for (int i = 0; i < count; i++) ends[i].communicator = (uint64_t)(uintptr_t)made[i];
  free(made);
  if (e->code) return e->code;
  return r == PB_NCCL_SUCCESS || r == PB_NCCL_IN_PROGRESS ? 0 : failed(n, r, "ncclCommInitRankConfig", NULL, e);
}

// What has become of what was begun: still pending, done, or an error, also one that came later by itself.
int pb_nccl_state(pb_nccl *n, uint64_t communicator, int *pending, pb_error *e) {
  ncclResult_t state = PB_NCCL_SUCCESS;
  CALL(n, communicator, ncclCommGetAsyncError, COMMUNICATOR(communicator), &state);
  *pending = state == PB_NCCL_IN_PROGRESS;
  return state == PB_NCCL_SUCCESS || *pending ? 0 : failed(n, state, "ncclCommGetAsyncError", COMMUNICATOR(communicator), e);
}

static ncclResult_t part(pb_nccl *n, const pb_nccl_part *p, ncclComm_t c, CUstream s) {
  void *src = (void *)(uintptr_t)p->src, *dst = (void *)(uintptr_t)p->dst;
  switch (p->call) {
    case PB_SEND: return n->ncclSend(src, p->count, p->type, p->peer, c, s);
    case PB_RECV: return n->ncclRecv(dst, p->count, p->type, p->peer, c, s);
    case PB_ALL_GATHER: return n->ncclAllGather(src, dst, p->count, p->type, c, s);
    case PB_REDUCE_SCATTER: return n->ncclReduceScatter(src, dst, p->count, p->type, PB_NCCL_SUM, c, s);
    default: return n->ncclAllReduce(src, dst, p->count, p->type, PB_NCCL_SUM, c, s);
  }
}

static int64_t nanoseconds(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec * 1000000000ll + t.tv_nsec;
}

// How long a call looks for the end of what it has begun. A communicator that does not block hands every group to a thread of its own, which has enqueued it
// some 40 us later, and until then the device has nothing to do behind it. The shortest sleep takes a millisecond; what takes longer than this waits for a peer.
// On a busy machine other threads get the processor only after a while.
static const int64_t soon = 200000, alone = 60000;

static int settle(pb_nccl *n, uint64_t communicator, int *pending, pb_error *e) {
  for (int64_t begun = nanoseconds(), now = begun; now - begun <= soon;) {
    now = nanoseconds();  // before the look: one look at least is as late as allowed
    if (pb_nccl_state(n, communicator, pending, e) || !*pending) break;
    if (now - begun > alone) sched_yield();
  }
  return e->code;
}

// Enqueues the parts of one exchange together. Nothing else may be enqueued on the stream while it is pending.
int pb_nccl_exchange(pb_nccl *n, pb_device *d, uint64_t communicator, uint64_t stream, const pb_nccl_part *parts, int count, int *pending, pb_error *e) {
  static const char *const names[] = {"ncclSend", "ncclRecv", "ncclAllGather", "ncclReduceScatter", "ncclAllReduce"};
  if (enter(d, e)) return e->code;
  const char *call = "ncclGroupStart";
  ncclResult_t r = n->ncclGroupStart(), end;
  for (int i = 0; i < count && (r == PB_NCCL_SUCCESS || r == PB_NCCL_IN_PROGRESS); i++) {
    call = names[parts[i].call];
    r = part(n, &parts[i], COMMUNICATOR(communicator), (CUstream)(uintptr_t)stream);
  }
  end = n->ncclGroupEnd();
  if (r == PB_NCCL_SUCCESS || r == PB_NCCL_IN_PROGRESS) r = end;
  *pending = r == PB_NCCL_IN_PROGRESS;
  if (*pending) return settle(n, communicator, pending, e);
  return r == PB_NCCL_SUCCESS ? 0 : failed(n, r, call, COMMUNICATOR(communicator), e);
}

int pb_nccl_finalize(pb_nccl *n, pb_device *d, uint64_t communicator, pb_error *e) {
  if (enter(d, e)) return e->code;
  CALL(n, communicator, ncclCommFinalize, COMMUNICATOR(communicator));
  return 0;
}

int pb_nccl_destroy(pb_nccl *n, pb_device *d, uint64_t communicator, pb_error *e) {
  if (enter(d, e)) return e->code;
  CALL(n, 0, ncclCommDestroy, COMMUNICATOR(communicator));
  return 0;
}

int pb_nccl_abort(pb_nccl *n, pb_device *d, uint64_t communicator, pb_error *e) {
  if (enter(d, e)) return e->code;
  CALL(n, 0, ncclCommAbort, COMMUNICATOR(communicator));
  return 0;
}
