// The functions of NCCL that the program uses, on the streams of the fake driver.
//
// A group of calls is a kernel that stays at the head of its stream until its peers' kernels are at the heads of theirs: nothing is buffered, as NCCL may or
// may not do, so ranks that issue in different orders stand still here for certain (see stuck in libcuda.cc). Kernels of one communicator follow each other,
// whatever their streams. Communicators do not block: a group is in progress for a while of wall time, and enqueued by the first look at its communicator
// after that. Calls are matched when they are issued; peers must agree on call, count and type, and use no communicator before it is made or
// after it was given back. Sums are made as in rings: in an order that is another one for every part, and in the type of the data.
//
// Where some ranks of a communicator are in another process, kernels meet on a board of files (board.h): a receiver says that it runs, the sender writes its data
// then, so that nothing is buffered there either. Counts and types are compared when both are there.
//
// FAKEGPU_BOARD (folder of the boards, which are used for all communicators then), FAKEGPU_NCCL (version), FAKEGPU_NCCL_ERROR (file: while there is one, the next look at a communicator finds a lost peer, and takes it away).
#include <algorithm>
#include <chrono>
#include <cstring>
#include <map>
#include <memory>

#include "board.h"
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
  fake::board board;
  std::map<std::pair<int, int>, std::deque<std::shared_ptr<transfer>>> open;  // by sender and receiver: one side is issued
  std::map<uint64_t, std::shared_ptr<round>> rounds;
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

// What a group of calls on one communicator does.
struct kernel {
  ncclComm *end;
  CUstream stream;
  bool launched = false, running = false, over = false;
  std::set<int> with;  // ranks that messages go to or come from
  std::vector<std::shared_ptr<transfer>> transfers;
  std::shared_ptr<struct round> round;
  std::vector<std::pair<call, uint64_t>> far;  // on a board, with their numbers between two ranks, or among collectives
};

// What a call says of itself on a board.
struct head {
  char name[24];
  uint64_t count;
  int64_t type;
};

}  // namespace

struct ncclComm {
  std::shared_ptr<clique> group;
  int rank, most;  // multiprocessors that its exchanges may take
  CUcontext context;
  std::chrono::steady_clock::time_point begun;  // what is in progress
  bool made = false, finalized = false, gone = false;
  bool seen = false;  // on a board
  ncclResult_t error = PB_NCCL_SUCCESS;
  uint64_t rounds = 0;
  std::map<int, uint64_t> sent, received;  // messages on a board, by peer
  std::set<int> reached;                      // peers that messages went to or came from
  std::vector<std::shared_ptr<kernel>> held;  // in progress
  std::shared_ptr<kernel> last;
};

namespace {

// How long a thread of the library takes to enqueue a group.
const auto progress = std::chrono::microseconds(40);

std::set<ncclComm *> ends;
std::map<std::string, std::shared_ptr<clique>> cliques;
uint64_t ids;

thread_local int depth;
thread_local std::vector<call> calls;
thread_local bool begun;
thread_local std::set<CUcontext> beginners;  // that have a communicator in this group of calls

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
      for (auto &from : r.sides)
        if (to.second.dst) memmove((char *)to.second.dst + from.first * bytes, from.second.src, bytes);
    return;
  }
  if (!strcmp(r.name, "ncclReduceScatter")) {
    for (auto &to : r.sides)
      if (to.second.dst) sum(r, to.first * r.count, r.count, (to.first + 1) % size, to.second.dst);
    return;
  }
  std::vector<char> all(bytes);
  size_t each = (r.count + size - 1) / size;
  for (int k = 0; k < size; k++) {
    size_t at = std::min(k * each, r.count), n = std::min(each, r.count - at);
    sum(r, at, n, (k + 1) % size, all.data() + at * width(r.type));
  }
  for (auto &to : r.sides)
    if (to.second.dst) memcpy(to.second.dst, all.data(), bytes);
}

void carry_out(kernel &k) {
  if (k.end->gone) return;
  for (auto &t : k.transfers)
    if (!t->done && !t->sender->end->gone && !t->receiver->end->gone) {
      travelled(t->sender->end->context->device, t->receiver->end->context->device, t->count * width(t->type));
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

bool sends(const call &c) { return !strcmp(c.name, "ncclSend"); }
bool receives(const call &c) { return !strcmp(c.name, "ncclRecv"); }

head head_of(const call &c) {
  head h = {};
  if (!sends(c) && !receives(c)) strncpy(h.name, c.name, sizeof h.name - 1);
  h.count = c.count;
  h.type = c.type;
  return h;
}

// agree compares what another process says of a call; the communicator has an error where it says something else.
bool agree(const call &c, const std::vector<char> &said, int peer) {
  head own = head_of(c), other = {};
  memcpy(&other, said.data(), std::min(said.size(), sizeof other));
  if (said.size() >= sizeof other && !memcmp(&own, &other, sizeof own)) return true;
  c.end->error = wrong(PB_NCCL_INVALID_ARGUMENT, "rank " + std::to_string(c.end->rank) + " disagrees with rank " + std::to_string(peer) + " in another process: " + c.name +
                                                     " of " + std::to_string(c.count) + " of type " + std::to_string(c.type) + ", there " + other.name + " " +
                                                     std::to_string(other.count) + " of type " + std::to_string(other.type));
  return false;
}

std::pair<size_t, size_t> sizes(const call &c);

// The three parts of a call on a board: it runs; its peers run, and it says what it has; they have, and it takes that.
struct far_call {
  const call &c;
  uint64_t n;
  const board &b = c.end->group->board;
  uint64_t me = c.end->rank, peer = c.peer;

  bool all(const char *kind) const {
    for (int r = 0; r < c.end->group->size; r++)
      if (!b.has(b.at(kind, {n, (uint64_t)r}))) return false;
    return true;
  }
  void begin() const {
    head h = head_of(c);
    if (receives(c)) b.put(b.at("receive", {peer, me, n}), &h, sizeof h);
    if (!receives(c) && !sends(c)) b.put(b.at("begin", {n, me}), &h, sizeof h);
  }
  bool peers_run() const { return receives(c) || (sends(c) ? b.has(b.at("receive", {me, peer, n})) : all("begin")); }
  void say() const {
    if (receives(c)) return;
    head h = head_of(c);
    if (sends(c)) {
      agree(c, b.get(b.at("receive", {me, peer, n})), c.peer);
      b.put(b.at("send", {me, peer, n}), &h, sizeof h, c.src, sizes(c).first);
      return b.drop(b.at("receive", {me, peer, n}));
    }
    b.put(b.at("data", {n, me}), &h, sizeof h, c.src, sizes(c).first);
    if (n > 0)  // everybody has begun this round, and is done with the last one
      for (const char *kind : {"begin", "data"}) b.drop(b.at(kind, {n - 1, me}));
  }
  bool peers_said() const {  // who disagrees waits for ever
    if (c.end->error) return false;
    if (sends(c)) return true;
    if (receives(c)) return b.has(b.at("send", {peer, me, n})) && agree(c, b.get(b.at("send", {peer, me, n})), c.peer);
    if (!all("data")) return false;
    for (int r = 0; r < c.end->group->size; r++)
      if (!agree(c, b.get(b.at("data", {n, (uint64_t)r})), r)) return false;
    return true;
  }
  void take() const {
    if (sends(c)) return;
    if (receives(c)) {
      auto said = b.get(b.at("send", {peer, me, n}));
      memcpy(c.dst, said.data() + sizeof(head), said.size() - sizeof(head));
      return b.drop(b.at("send", {peer, me, n}));
    }
    round r;
    r.name = c.name;
    r.count = c.count;
    r.type = c.type;
    std::vector<std::vector<char>> said(c.end->group->size);
    for (size_t p = 0; p < said.size(); p++) {
      said[p] = b.get(b.at("data", {n, p}));
      r.sides[(int)p] = {nullptr, said[p].data() + sizeof(head), p == me ? c.dst : nullptr};
    }
    carry_out(r);
  }
};

// launch enqueues a kernel: its begin, behind the last one of the communicator, and its end, when all peers' kernels run.
void launch(std::shared_ptr<kernel> k) {
  std::shared_ptr<kernel> before = k->end->last;
  k->end->last = k;
  k->launched = true;
  auto each = [k](auto f) {
    bool all = true;
    for (auto &c : k->far) all &= f(far_call{c.first, c.second});
    return all;
  };
  auto open = [](std::vector<CUstream> &) { return true; };
  enqueue(
      k->stream,
      [k, each] {
        k->running = true;
        if (!k->end->gone) each([](const far_call &c) { return c.begin(), true; });
      },
      [k, before] { return !before || before->over || k->end->gone; },
      [before](std::vector<CUstream> &on) {
        on.push_back(before->stream);
        return false;
      });
  if (!k->far.empty()) {
    enqueue(
        k->stream,
        [k, each] {
          if (!k->end->gone) each([](const far_call &c) { return c.say(), true; });
        },
        [k, each] { return k->end->gone || each([](const far_call &c) { return c.peers_run(); }); }, open);
    enqueue(
        k->stream,
        [k, each] {
          if (!k->end->gone) each([](const far_call &c) { return c.take(), true; });
          k->over = true;
        },
        [k, each] { return k->end->gone || each([](const far_call &c) { return c.peers_said(); }); }, open);
    return;
  }
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
          if (!p || !p->launched)  // its host has yet to look
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

// post adds a call whose peers are on a board.
ncclResult_t post(std::shared_ptr<kernel> k, const call &c) {
  auto &of = sends(c) ? c.end->sent : c.end->received;
  bool message = sends(c) || receives(c);
  k->far.push_back({c, message ? of[c.peer]++ : c.end->rounds++});
  if (message) k->with.insert(c.peer);
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

// issue turns the calls of a group into kernels, one a communicator and kind, which are held until somebody looks at the communicator (unhold).
ncclResult_t issue() {
  std::vector<call> all;
  all.swap(calls);
  std::map<ncclComm *, std::shared_ptr<kernel>> messages;
  std::vector<std::shared_ptr<kernel>> made;
  for (const call &c : all) {
    if (ncclResult_t r = check(c)) return r;
    bool message = sends(c) || receives(c);
    std::shared_ptr<kernel> k = message ? messages[c.end] : nullptr;
    if (!k) {
      k = std::make_shared<kernel>();
      k->end = c.end;
      k->stream = c.stream;
      made.push_back(k);
      if (message) messages[c.end] = k;
    }
    if (c.end->most && c.end->reached.count(c.peer) && !c.stream->priority) return wrong(PB_NCCL_INVALID_USAGE, "a message of a pipeline on a stream without priority");
    if (k->stream != c.stream) return wrong(PB_NCCL_INVALID_USAGE, "one group on two streams");
    if (ncclResult_t r = c.end->group->board ? post(k, c) : message ? pair(k, c, sends(c)) : join(k, c)) return r;
  }
  for (auto &k : made) {
    k->end->held.push_back(k);
    k->end->begun = std::chrono::steady_clock::now();
    if (const board &b = k->end->group->board)
      for (int p : k->with) b.put(b.at("issued", {(uint64_t)k->end->rank, (uint64_t)p}), "", 0);
  }
  moved.notify_all();
  return made.empty() ? PB_NCCL_SUCCESS : PB_NCCL_IN_PROGRESS;
}

// unhold launches what was held. The first messages between two ranks wait until both sides are there.
void unhold(ncclComm *c) {
  if (c->held.empty()) return;
  const board &b = c->group->board;
  for (auto &k : c->held) {
    if (std::includes(c->reached.begin(), c->reached.end(), k->with.begin(), k->with.end())) continue;
    if (!peers(*k, [](kernel *p) { return p != nullptr; })) return;
    for (int p : k->with)
      if (b && !b.has(b.at("issued", {(uint64_t)p, (uint64_t)c->rank}))) return;
  }
  for (auto &k : c->held) {
    c->reached.insert(k->with.begin(), k->with.end());
    launch(k);
  }
  c->held.clear();
  moved.notify_all();
}

// everybody reports whether all ranks have said something on their board.
bool everybody(const ncclComm *c, const char *kind) {
  const board &b = c->group->board;
  for (int r = 0; r < c->group->size; r++)
    if (!b.has(b.at(kind, {(uint64_t)r}))) return false;
  return true;
}

// appear puts the ranks that this process has begun to make on their boards, where others are elsewhere.
void appear() {
  for (ncclComm *c : ends) {
    clique &g = *c->group;
    if (c->seen || c->gone || ((int)g.ends.size() == g.size && !g.board && !getenv("FAKEGPU_BOARD"))) continue;
    for (auto &i : cliques)
      if (i.second.get() == &g) g.board.folder = i.first;
    std::error_code none;
    std::filesystem::create_directories(g.board.folder, none);
    std::string text = std::to_string(g.size) + " on device " + std::to_string(c->context->device);
    g.board.put(g.board.at("made", {(uint64_t)c->rank}), text.data(), text.size());
    c->seen = true;
    outside++;
  }
}

// made reports whether all ranks of a communicator are there.
bool made(ncclComm *c) {
  const board &b = c->group->board;
  if (!b) return (int)c->group->ends.size() == c->group->size;
  if (!everybody(c, "made")) return false;
  std::set<std::vector<char>> texts;
  for (int r = 0; r < c->group->size; r++) texts.insert(b.get(b.at("made", {(uint64_t)r})));
  if ((int)texts.size() < c->group->size) c->error = wrong(PB_NCCL_INVALID_USAGE, "two ranks are on one device");
  return true;
}

// leave takes a rank that has gone off its board, and the board away with the last one.
void leave(ncclComm *c) {
  c->gone = true;
  c->context->communicators--;
  if (!c->seen) return;
  outside--;
  const board &b = c->group->board;
  b.put(b.at("gone", {(uint64_t)c->rank}), "", 0);
  if (everybody(c, "gone")) b.clear();
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
  const char *boards = getenv("FAKEGPU_BOARD");
  snprintf(out->internal, sizeof out->internal, "%s/fake-nccl-%d-%llu", boards ? boards : "/tmp", (int)getpid(), (unsigned long long)++ids);
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
  beginners.clear();
  if (made) appear();
  ncclResult_t r = issue();
  return r ? r : made ? PB_NCCL_IN_PROGRESS : PB_NCCL_SUCCESS;
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t *out, int size, ncclUniqueId id, int rank, ncclConfig_t *config) {
  std::lock_guard<std::mutex> lock(big);
  if (config->magic != PB_NCCL_MAGIC || config->size != sizeof(pb_nccl_config)) return wrong(PB_NCCL_INVALID_ARGUMENT, "a configuration that was not initialised");
  if (config->blocking != 0 || depth == 0) return wrong(PB_NCCL_INVALID_USAGE, "communicators here are not blocking and made in a group");
  if (!current || rank < 0 || rank >= size) return wrong(PB_NCCL_INVALID_ARGUMENT, "no device is current, or a rank that is none");
  auto &c = cliques[id.internal];
  if (!c) c = std::make_shared<clique>(clique{size, {}, {}, {}, {}});
  if (c->size != size || c->ends.count(rank)) return wrong(PB_NCCL_INVALID_ARGUMENT, "two ranks of one number, or groups of two sizes");
  // a communicator of all ranks, then those of neighbours in a pipeline, whose messages pass beside products
  bool edge = !beginners.insert(current).second;
  if (config->maxCTAs != (edge ? 4 : PB_NCCL_UNDEFINED)) return wrong(PB_NCCL_INVALID_USAGE, "a communicator of " + std::to_string(config->maxCTAs) + " multiprocessors");
  ncclComm *e = new ncclComm;
  e->group = c;
  e->rank = rank;
  e->most = edge ? config->maxCTAs : 0;
  e->context = current;
  e->begun = std::chrono::steady_clock::now();
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
  if (std::chrono::steady_clock::now() - c->begun < progress) return PB_NCCL_SUCCESS;
  if (!c->made) c->made = made(c);
  if (!c->made) return PB_NCCL_SUCCESS;
  unhold(c);
  if (!c->held.empty()) return PB_NCCL_SUCCESS;
  if (c->finalized && c->seen && !everybody(c, "finalized")) return PB_NCCL_SUCCESS;
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
  if (const board &b = c->group->board) b.put(b.at("finalized", {(uint64_t)c->rank}), "", 0);
  c->begun = std::chrono::steady_clock::now();
  return PB_NCCL_IN_PROGRESS;
}

ncclResult_t ncclCommDestroy(ncclComm_t c) {
  ALIVE(c);
  if (!c->finalized || (c->last && !c->last->over)) return wrong(PB_NCCL_INVALID_USAGE, "a communicator was destroyed before its work was over");
  leave(c);
  return PB_NCCL_SUCCESS;
}

ncclResult_t ncclCommAbort(ncclComm_t c) {
  ALIVE(c);
  c->held.clear();
  leave(c);
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
