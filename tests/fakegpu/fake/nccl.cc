// The functions of NCCL that the program uses, on the streams of the fake driver.
//
// A group of calls is a kernel that stays at the head of its stream until its peers' kernels are at the heads of theirs: nothing is buffered, as NCCL may or
// may not do, so ranks that issue in different orders stand still here for certain (see stuck in libcuda.cc). Kernels of one communicator follow each other,
// whatever their streams. Calls are matched when they are issued; peers must agree on call, count and type, and use no communicator before it is made or
// after it was given back. Sums are made as in rings: in an order that is another one for every part, and in the type of the data.
//
// FAKEGPU_NCCL (version), FAKEGPU_NCCL_ERROR (file: while there is one, the next look at a communicator finds a lost peer, and takes it away).
#include <algorithm>
#include <cstring>
#include <map>
#include <memory>

#include "nccl.h"
#include "queue.h"

using namespace fake;

namespace {

struct kernel;

// One message, from when its first side was issued.
struct transfer {
  std::shared_ptr<kernel> sender, receiver;
  const void *src = nullptr;
  void *dst = nullptr;
  size_t count = 0;
  int type = 0;
  bool done = false;
};

// One collective of all ranks.
struct round {
  struct side {
    std::shared_ptr<kernel> by;
    const void *src;
    void *dst;
  };
  const char *name;
  size_t count;
  int type;
  std::map<int, side> sides;
  bool done = false;
};

// The ranks that were made with one id.
struct clique {
  int size;
  std::map<int, ncclComm *> ends;
  std::map<std::pair<int, int>, std::deque<std::shared_ptr<transfer>>> open;  // by sender and receiver: one side is issued
  std::map<uint64_t, std::shared_ptr<round>> rounds;
};

// What a group of calls on one communicator does.
struct kernel {
  ncclComm *end;
  CUstream stream;
  bool running = false, over = false;
  std::set<int> with;  // ranks that messages go to or come from
  std::vector<std::shared_ptr<transfer>> transfers;
  std::shared_ptr<struct round> round;
};

// One call as the program made it.
struct call {
  const char *name;
  ncclComm *end;
  CUstream stream;
  const void *src;
  void *dst;
  size_t count;
  int type, peer;
};

}  // namespace

struct ncclComm {
  std::shared_ptr<clique> group;
  int rank;
  CUcontext context;
  int looks = 0;  // since something was begun
  bool made = false, finalized = false, gone = false;
  ncclResult_t error = PB_NCCL_SUCCESS;
  uint64_t rounds = 0;
  std::set<int> reached;                      // peers that messages went to or came from
  std::vector<std::shared_ptr<kernel>> held;  // until their peers are there for the first time
  std::shared_ptr<kernel> last;
};

namespace {

std::set<ncclComm *> ends;
std::map<std::string, std::shared_ptr<clique>> cliques;
uint64_t ids;

thread_local int depth;
thread_local std::vector<call> calls;
thread_local bool begun;

ncclResult_t wrong(ncclResult_t code, const std::string &text) {
  trouble(PB_INVALID_VALUE, text);
  return code;
}

size_t width(int type) { return type == PB_NCCL_U8 ? 1 : type == PB_NCCL_BF16 ? 2 : type == PB_NCCL_F32 ? 4 : type == PB_NCCL_F64 ? 8 : 0; }

float widened(uint16_t v) {
  uint32_t bits = (uint32_t)v << 16;
  float f;
  memcpy(&f, &bits, 4);
  return f;
}

uint16_t narrowed(float f) {
  uint32_t bits;
  memcpy(&bits, &f, 4);
  if (f != f) return 0x7fc0;
  return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

// added returns element i of the sum over all ranks, begun at rank first.
template <class T, class W, class N>
T added(const round &r, size_t i, int first, W wide, N narrow) {
  int size = (int)r.sides.size();
  T sum = ((const T *)r.sides.at(first).src)[i];
  for (int k = 1; k < size; k++) sum = narrow(wide(sum) + wide(((const T *)r.sides.at((first + k) % size).src)[i]));
  return sum;
}

// sum stores n elements from at of the sum; parts of a ring begin at different ranks.
void sum(const round &r, size_t at, size_t n, int first, void *out) {
  auto same = [](auto v) { return v; };
  for (size_t i = 0; i < n; i++)
    if (r.type == PB_NCCL_F32)
      ((float *)out)[i] = added<float>(r, at + i, first, same, same);
    else if (r.type == PB_NCCL_F64)
      ((double *)out)[i] = added<double>(r, at + i, first, same, same);
    else
      ((uint16_t *)out)[i] = added<uint16_t>(r, at + i, first, widened, narrowed);
}

void carry_out(round &r) {
  if (r.done) return;
  r.done = true;
  int size = (int)r.sides.size();
  size_t bytes = r.count * width(r.type);
  if (!strcmp(r.name, "ncclAllGather")) {
    for (auto &to : r.sides)
      for (auto &from : r.sides) memmove((char *)to.second.dst + from.first * bytes, from.second.src, bytes);
    return;
  }
  if (!strcmp(r.name, "ncclReduceScatter")) {
    for (auto &to : r.sides) sum(r, to.first * r.count, r.count, (to.first + 1) % size, to.second.dst);
    return;
  }
  std::vector<char> all(bytes);
  size_t each = (r.count + size - 1) / size;
  for (int k = 0; k < size; k++) {
    size_t at = std::min(k * each, r.count), n = std::min(each, r.count - at);
    sum(r, at, n, (k + 1) % size, all.data() + at * width(r.type));
  }
  for (auto &to : r.sides) memcpy(to.second.dst, all.data(), bytes);
}

void carry_out(kernel &k) {
  if (k.end->gone) return;
  for (auto &t : k.transfers)
    if (!t->done && !t->sender->end->gone && !t->receiver->end->gone) {
      memcpy(t->dst, t->src, t->count * width(t->type));
      t->done = true;
    }
  if (k.round) carry_out(*k.round);
}

// peers calls f with every kernel that k works with, null where it was not issued yet; false from f ends it.
bool peers(const kernel &k, const std::function<bool(kernel *)> &f) {
  for (auto &t : k.transfers)
    if (!t->done && !f((t->sender.get() == &k ? t->receiver : t->sender).get())) return false;
  if (k.round && !k.round->done)
    for (int r = 0; r < k.end->group->size; r++) {
      auto side = k.round->sides.find(r);
      if (!f(side == k.round->sides.end() ? nullptr : side->second.by.get())) return false;
    }
  return true;
}

// launch enqueues a kernel: its begin, behind the last one of the communicator, and its end, when all peers' kernels run.
void launch(std::shared_ptr<kernel> k) {
  std::shared_ptr<kernel> before = k->end->last;
  k->end->last = k;
  enqueue(
      k->stream, [k] { k->running = true; }, [k, before] { return !before || before->over || k->end->gone; },
      [before](std::vector<CUstream> &on) {
        on.push_back(before->stream);
        return false;
      });
  enqueue(
      k->stream,
      [k] {
        carry_out(*k);
        k->over = true;
      },
      [k] { return k->end->gone || peers(*k, [](kernel *p) { return p && p->running; }); },
      [k](std::vector<CUstream> &on) {
        bool open = false;
        peers(*k, [&](kernel *p) {
          if (!p)
            open = true;
          else if (!p->running && p->stream != k->stream)
            on.push_back(p->stream);
          return true;
        });
        return open;
      });
}

bool looked_after(ncclComm *c) { return ends.count(c) && !c->gone; }

// pair matches one side of a message with the other, if that was issued.
ncclResult_t pair(std::shared_ptr<kernel> k, const call &c, bool sends) {
  auto key = sends ? std::make_pair(c.end->rank, c.peer) : std::make_pair(c.peer, c.end->rank);
  auto &open = c.end->group->open[key];
  std::shared_ptr<transfer> t;
  for (auto &other : open)
    if (!(sends ? other->sender : other->receiver)) {
      t = other;
      break;
    }
  if (t && (t->count != c.count || t->type != c.type))
    return wrong(PB_NCCL_INVALID_ARGUMENT, "ranks " + std::to_string(key.first) + " and " + std::to_string(key.second) + " disagree: " + std::to_string(c.count) +
                                               " elements of type " + std::to_string(c.type) + " in " + c.name + ", " + std::to_string(t->count) + " of type " +
                                               std::to_string(t->type) + " on the other side");
  if (!t) {
    t = std::make_shared<transfer>();
    t->count = c.count;
    t->type = c.type;
    open.push_back(t);
  } else {
    open.erase(std::find(open.begin(), open.end(), t));
  }
  if (sends) {
    t->sender = k;
    t->src = c.src;
  } else {
    t->receiver = k;
    t->dst = c.dst;
  }
  k->transfers.push_back(t);
  k->with.insert(c.peer);
  return PB_NCCL_SUCCESS;
}

// join adds one rank's part of a collective.
ncclResult_t join(std::shared_ptr<kernel> k, const call &c) {
  auto &r = c.end->group->rounds[c.end->rounds++];
  if (!r) {
    r = std::make_shared<round>();
    r->name = c.name;
    r->count = c.count;
    r->type = c.type;
  }
  if (strcmp(r->name, c.name) || r->count != c.count || r->type != c.type)
    return wrong(PB_NCCL_INVALID_ARGUMENT, "rank " + std::to_string(c.end->rank) + " disagrees: " + c.name + " of " + std::to_string(c.count) + ", others " + r->name +
                                               " of " + std::to_string(r->count));
  r->sides[c.end->rank] = {k, c.src, c.dst};
  k->round = r;
  return PB_NCCL_SUCCESS;
}

// bytes of the source and the destination of a call.
std::pair<size_t, size_t> sizes(const call &c) {
  size_t n = c.count * width(c.type), all = n * c.end->group->size;
  std::string name = c.name;
  return {name == "ncclRecv" ? 0 : name == "ncclReduceScatter" ? all : n, name == "ncclSend" ? 0 : name == "ncclAllGather" ? all : n};
}

ncclResult_t check(const call &c) {
  if (!looked_after(c.end)) return wrong(PB_NCCL_INVALID_ARGUMENT, std::string(c.name) + " on a communicator that was given back");
  if (c.end->error) return c.end->error;
  if (!c.end->made || !c.end->held.empty()) return wrong(PB_NCCL_INVALID_USAGE, std::string(c.name) + " on a communicator while something is in progress");
  if (c.end->finalized) return wrong(PB_NCCL_INVALID_USAGE, std::string(c.name) + " on a communicator that was finalized");
  if (fake::check(c.stream)) return PB_NCCL_INVALID_ARGUMENT;
  if (c.stream->context != c.end->context || current != c.end->context) return wrong(PB_NCCL_INVALID_ARGUMENT, std::string(c.name) + " on another device's stream");
  if (c.peer < 0 || c.peer >= c.end->group->size) return wrong(PB_NCCL_INVALID_ARGUMENT, std::string(c.name) + " with rank " + std::to_string(c.peer));
  if (c.count == 0 || width(c.type) == 0) return wrong(PB_NCCL_INVALID_ARGUMENT, std::string(c.name) + " of nothing, or of an unknown type");
  auto n = sizes(c);
  if ((n.first && !inside((uintptr_t)c.src, n.first, false, c.end->context)) || (n.second && !inside((uintptr_t)c.dst, n.second, false, c.end->context)))
    return wrong(PB_NCCL_INVALID_ARGUMENT, std::string(c.name) + " of memory that is not of the device");
  return PB_NCCL_SUCCESS;
}

// issue turns the calls of a group into kernels, one a communicator and kind. The first messages between two ranks are held until both sides are there.
ncclResult_t issue() {
  std::vector<call> all;
  all.swap(calls);
  std::map<ncclComm *, std::shared_ptr<kernel>> messages;
  std::vector<std::shared_ptr<kernel>> made;
  for (const call &c : all) {
    if (ncclResult_t r = check(c)) return r;
    bool sends = !strcmp(c.name, "ncclSend"), message = sends || !strcmp(c.name, "ncclRecv");
    std::shared_ptr<kernel> k = message ? messages[c.end] : nullptr;
    if (!k) {
      k = std::make_shared<kernel>();
      k->end = c.end;
      k->stream = c.stream;
      made.push_back(k);
      if (message) messages[c.end] = k;
    }
    if (k->stream != c.stream) return wrong(PB_NCCL_INVALID_USAGE, "one group on two streams");
    if (ncclResult_t r = message ? pair(k, c, sends) : join(k, c)) return r;
  }
  bool pending = false;
  for (auto &k : made) {
    auto &reached = k->end->reached;
    if (!std::includes(reached.begin(), reached.end(), k->with.begin(), k->with.end())) {
      k->end->held.push_back(k);
      k->end->looks = 0;
      pending = true;
    } else {
      launch(k);
    }
  }
  moved.notify_all();
  return pending ? PB_NCCL_IN_PROGRESS : PB_NCCL_SUCCESS;
}

// unhold launches what was held, once every peer is there.
void unhold(ncclComm *c) {
  for (auto &k : c->held)
    if (!peers(*k, [](kernel *p) { return p != nullptr; })) return;
  for (auto &k : c->held) {
    c->reached.insert(k->with.begin(), k->with.end());
    launch(k);
  }
  c->held.clear();
}

ncclResult_t add(const call &c) {
  std::lock_guard<std::mutex> lock(big);
  calls.push_back(c);
  return depth ? PB_NCCL_SUCCESS : issue();
}

#define ALIVE(c)                                                                                               \
  std::lock_guard<std::mutex> lock(big);                                                                       \
  if (!looked_after(c)) return wrong(PB_NCCL_INVALID_ARGUMENT, std::string(__func__) + " on a communicator that was given back")

}  // namespace

#pragma GCC visibility push(default)
extern "C" {

ncclResult_t ncclGetVersion(int *v) {
  *v = (int)setting("FAKEGPU_NCCL", 22105);
  return PB_NCCL_SUCCESS;
}

ncclResult_t ncclGetUniqueId(ncclUniqueId *out) {
  std::lock_guard<std::mutex> lock(big);
  memset(out, 0, sizeof *out);
  snprintf(out->internal, sizeof out->internal, "fake %llu", (unsigned long long)++ids);
  return PB_NCCL_SUCCESS;
}

const char *ncclGetErrorString(ncclResult_t code) {
  return code == PB_NCCL_INVALID_ARGUMENT ? "invalid argument" : code == PB_NCCL_INVALID_USAGE ? "invalid usage" : code == PB_NCCL_REMOTE ? "remote process exited or there was a network error" : "error";
}

const char *ncclGetLastError(ncclComm_t) {
  static thread_local std::string copy;
  std::lock_guard<std::mutex> lock(big);
  copy = "fake NCCL: " + fault;
  return copy.c_str();
}

ncclResult_t ncclGroupStart() {
  depth++;
  return PB_NCCL_SUCCESS;
}

ncclResult_t ncclGroupEnd() {
  std::lock_guard<std::mutex> lock(big);
  if (depth == 0) return wrong(PB_NCCL_INVALID_USAGE, "ncclGroupEnd without ncclGroupStart");
  if (--depth) return PB_NCCL_SUCCESS;
  bool made = begun;
  begun = false;
  ncclResult_t r = issue();
  return r ? r : made ? PB_NCCL_IN_PROGRESS : PB_NCCL_SUCCESS;
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t *out, int size, ncclUniqueId id, int rank, ncclConfig_t *config) {
  std::lock_guard<std::mutex> lock(big);
  if (config->magic != PB_NCCL_MAGIC || config->size != sizeof(pb_nccl_config)) return wrong(PB_NCCL_INVALID_ARGUMENT, "a configuration that was not initialised");
  if (config->blocking != 0 || depth == 0) return wrong(PB_NCCL_INVALID_USAGE, "communicators here are not blocking and made in a group");
  if (!current || rank < 0 || rank >= size) return wrong(PB_NCCL_INVALID_ARGUMENT, "no device is current, or a rank that is none");
  auto &c = cliques[id.internal];
  if (!c) c = std::make_shared<clique>(clique{size, {}, {}, {}});
  if (c->size != size || c->ends.count(rank)) return wrong(PB_NCCL_INVALID_ARGUMENT, "two ranks of one number, or groups of two sizes");
  ncclComm *e = new ncclComm;
  e->group = c;
  e->rank = rank;
  e->context = current;
  for (auto &other : c->ends)
    if (other.second->context == current)
      e->error = other.second->error = wrong(PB_NCCL_INVALID_USAGE, "ranks " + std::to_string(other.first) + " and " + std::to_string(rank) + " are on one device");
  c->ends[rank] = e;
  ends.insert(e);
  current->communicators++;
  begun = true;
  *out = e;
  return PB_NCCL_SUCCESS;
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t c, ncclResult_t *out) {
  ALIVE(c);
  if (told("FAKEGPU_NCCL_ERROR")) {
    fault = "a peer is lost, as it was told to be";
    c->error = PB_NCCL_REMOTE;
  }
  *out = PB_NCCL_IN_PROGRESS;
  if (c->error) return *out = c->error, PB_NCCL_SUCCESS;
  if (++c->looks < 3) return PB_NCCL_SUCCESS;
  if (!c->made) c->made = (int)c->group->ends.size() == c->group->size;
  if (!c->made) return PB_NCCL_SUCCESS;
  unhold(c);
  if (!c->held.empty()) return PB_NCCL_SUCCESS;
  if (c->finalized) {
    for (auto &other : c->group->ends)
      if (!other.second->finalized && !other.second->gone) return PB_NCCL_SUCCESS;
    if (c->last && !c->last->over) return step(), PB_NCCL_SUCCESS;
  }
  *out = PB_NCCL_SUCCESS;
  return PB_NCCL_SUCCESS;
}

ncclResult_t ncclCommFinalize(ncclComm_t c) {
  ALIVE(c);
  c->finalized = true;
  c->looks = 0;
  return PB_NCCL_IN_PROGRESS;
}

ncclResult_t ncclCommDestroy(ncclComm_t c) {
  ALIVE(c);
  if (!c->finalized || (c->last && !c->last->over)) return wrong(PB_NCCL_INVALID_USAGE, "a communicator was destroyed before its work was over");
  c->gone = true;
  c->context->communicators--;
  return PB_NCCL_SUCCESS;
}

ncclResult_t ncclCommAbort(ncclComm_t c) {
  ALIVE(c);
  c->gone = true;
  c->held.clear();
  c->context->communicators--;
  moved.notify_all();
  return PB_NCCL_SUCCESS;
}

ncclResult_t ncclSend(const void *src, size_t n, ncclDataType_t type, int peer, ncclComm_t c, CUstream s) { return add({__func__, c, s, src, nullptr, n, type, peer}); }

ncclResult_t ncclRecv(void *dst, size_t n, ncclDataType_t type, int peer, ncclComm_t c, CUstream s) { return add({__func__, c, s, nullptr, dst, n, type, peer}); }

ncclResult_t ncclAllReduce(const void *src, void *dst, size_t n, ncclDataType_t type, ncclRedOp_t op, ncclComm_t c, CUstream s) {
  if (op != PB_NCCL_SUM) return PB_NCCL_INVALID_ARGUMENT;
  return add({__func__, c, s, src, dst, n, type, 0});
}

ncclResult_t ncclAllGather(const void *src, void *dst, size_t n, ncclDataType_t type, ncclComm_t c, CUstream s) { return add({__func__, c, s, src, dst, n, type, 0}); }

ncclResult_t ncclReduceScatter(const void *src, void *dst, size_t n, ncclDataType_t type, ncclRedOp_t op, ncclComm_t c, CUstream s) {
  if (op != PB_NCCL_SUM) return PB_NCCL_INVALID_ARGUMENT;
  return add({__func__, c, s, src, dst, n, type, 0});
}

}  // extern "C"
