// A libcuda.so.1 without a GPU: the driver's functions on the CPU, for programs that open the library at run time.
//
// Streams are queues. Nothing runs when it is enqueued; work runs when somebody waits, one operation at a time, and which stream goes next is drawn from a
// seed: a missing event, a host buffer reused early or a result read too soon gives other numbers. Allocations lie between guard bytes, start and end
// as NaN, and stay poisoned for a while after they are freed. Kernels run on fibres (fibre.h).
//
// FAKEGPU_SEED (number), FAKEGPU_LANDING (late, once), FAKEGPU_EAGER (1: work runs as soon as its stream may), FAKEGPU_MEMORY (bytes), FAKEGPU_DEVICES,
// FAKEGPU_MAJOR and FAKEGPU_MINOR (compute capability, 8 and 6), FAKEGPU_LOADED (a file that gets a line a module: PTX or what its code was made for),
// CUDA_FORCE_PTX_JIT and CUDA_DISABLE_PTX_JIT (1: no code, or no PTX, as with the real driver), FAKEGPU_DRIVER (CUDA version it serves), FAKEGPU_PEERS (0: devices do not reach each other's memory),
// FAKEGPU_NAMES, FAKEGPU_SLOW (times as long as an operation of the fake's clock takes, 1) and FAKEGPU_MEMORY, one for each device with commas between, the
// last for all that follow, FAKEGPU_LINKS (GB/s of copies between two devices on that clock, as in 0-1:100,0-2:10; others take the time of an operation),
// FAKEGPU_PATIENCE (seconds that a stream may wait for a peer that issues nothing; 0: for ever), FAKEGPU_BREAK, FAKEGPU_REFUSE, FAKEGPU_HANG,
// FAKEGPU_REFUSE_CAPTURE and FAKEGPU_FULL (files: while there is one, the next launch breaks its device, is refused or never ends, the next capture does not
// begin, or the next allocation finds no memory, and takes it away), FAKEGPU_COUNT (a file that gets a line a launch: kernel and
// instructions of all its threads, of kernels translated from PTX), FAKEGPU_PINNED (bytes of the largest page-locked piece; copies of pageable memory, which
// are an error otherwise, are then done as the driver does them).
#include <dlfcn.h>
#include <elf.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "device.h"
#include "driver.h"
#include "fibre.h"
#include "queue.h"

namespace {

const size_t guard = 512;
const unsigned char poison = 0xff;
const size_t quarantine_most = 64 << 20;
const int shared_limit = 99 << 10;  // of the smallest GPUs that are supported

struct allocation {
  size_t bytes;
  CUcontext context;
  bool host;
};

}  // namespace

// One record of an event. Streams that wait for it do so when the event was recorded again, or destroyed.
struct record {
  bool done = false;
  double at = 0;
  CUstream by;
};
struct CUevent_st {
  CUcontext context;
  bool timing;
  std::shared_ptr<record> last;  // null: never recorded
  std::shared_ptr<capture> in;   // that it was recorded in last, behind the nodes of at; null: in none
  std::set<size_t> at;

  bool done() const { return !last || last->done; }
};
struct CUmod_st {
  CUcontext context;
  std::map<std::string, CUfunction> functions;
};
struct CUgraph_st {
  CUcontext context;
  std::vector<node> nodes;
};
struct CUgraphExec_st {
  CUcontext context;
  std::shared_ptr<std::vector<node>> nodes;
};
struct CUfunc_st {
  CUcontext context;
  std::string name;
  void *code;
  size_t args;
  unsigned threads;  // launch bound
  int shared = 48 << 10;
};

namespace fake {

std::mutex big;
std::condition_variable_any moved;
thread_local CUcontext current;
std::string fault = "none";
int outside;

}  // namespace fake
using namespace fake;

namespace {

bool initialised;
std::map<int, CUcontext> contexts;
std::map<uintptr_t, allocation> live;
struct freed {
  unsigned char *base;
  size_t bytes;
};
std::deque<freed> quarantine;
size_t quarantined;
uint64_t streams_made;
std::set<CUstream> streams;
std::set<CUevent> events;
std::set<CUgraph> graphs;
std::set<CUgraphExec> execs;
uint64_t draw_state;
double clock_now;

}  // namespace

uint64_t fake::setting(const char *name, uint64_t otherwise) {
  const char *v = getenv(name);
  return v && *v ? strtoull(v, nullptr, 0) : otherwise;
}

// of is the part of a setting for a device, commas between them: the last one is for all that follow.
static std::string of(const char *name, int device, const char *otherwise) {
  const char *v = getenv(name);
  std::string list = v && *v ? v : otherwise;
  for (; device > 0 && list.find(',') != std::string::npos; device--) list.erase(0, list.find(',') + 1);
  return list.substr(0, list.find(','));
}

static uint64_t memory_of(int device) { return strtoull(of("FAKEGPU_MEMORY", device, "8589934592").c_str(), nullptr, 0); }

// passed is milliseconds of an operation on a device, by the fake's clock.
static double passed(CUcontext c) { return 1e-3 * strtod(of("FAKEGPU_SLOW", c->device, "1").c_str(), nullptr); }

// travelled lets the clock run for a copy between two devices.
void fake::travelled(int from, int to, size_t bytes) {
  const char *v = getenv("FAKEGPU_LINKS");
  std::string list = v ? "," + std::string(v) : "", way = "," + std::to_string(std::min(from, to)) + "-" + std::to_string(std::max(from, to)) + ":";
  size_t at = list.find(way);
  if (from != to && at != std::string::npos) clock_now += (double)bytes / (1e6 * strtod(list.c_str() + at + way.size(), nullptr));
}

// told reports whether the file that a variable names is there, and takes it away.
bool fake::told(const char *name) {
  const char *path = getenv(name);
  return path && *path && !unlink(path);
}

static uint64_t draw() {
  draw_state = draw_state * 6364136223846793005u + 1442695040888963407u;
  return draw_state >> 33;
}

// Trouble is said on stderr too: the program may not look at the text.
CUresult fake::trouble(CUresult code, const std::string &text) {
  fault = text;
  fprintf(stderr, "fakegpu: %s\n", text.c_str());
  return code;
}

static CUresult check() {
  if (!initialised) return PB_NOT_INITIALIZED;
  if (!current) return trouble(PB_INVALID_CONTEXT, "no context is current on this thread");
  if (current->users == 0) return trouble(PB_INVALID_CONTEXT, "the context was released");
  return current->sticky;
}

#define ENTER                                \
  std::lock_guard<std::mutex> lock(big);     \
  if (CUresult bad = check()) return bad

CUresult fake::check(CUstream s) {
  if (!streams.count(s)) return trouble(PB_INVALID_HANDLE, "not a stream (the legacy stream is not used here)");
  if (s->context != current) return trouble(PB_INVALID_HANDLE, "a stream of another context");
  return PB_SUCCESS;
}
// spoil makes a capture end in an error, as everything does that it cannot have.
static CUresult spoil(const std::shared_ptr<capture> &c, CUresult code, const std::string &text) {
  if (c) c->invalid = true;
  return trouble(code, text);
}

// unsafe refuses calls that no capture sees while one is under way whose mode forbids them.
static CUresult unsafe(const char *what) {
  for (CUstream s : streams)
    if (s->captured && (s->captured->mode == PB_CAPTURE_GLOBAL || (s->captured->mode != PB_CAPTURE_RELAXED && s->captured->by == std::this_thread::get_id())))
      return spoil(s->captured, PB_CAPTURE_UNSUPPORTED, std::string(what) + " while a stream is captured");
  return PB_SUCCESS;
}

static CUresult check(CUgraph g) { return graphs.count(g) ? PB_SUCCESS : trouble(PB_INVALID_VALUE, "not a graph"); }
static CUresult check(CUgraphExec x) { return execs.count(x) ? PB_SUCCESS : trouble(PB_INVALID_VALUE, "not a graph that can be launched"); }
static CUresult check(CUevent e) {
  if (!events.count(e)) return trouble(PB_INVALID_HANDLE, "not an event");
  return PB_SUCCESS;
}
#define CHECK(x) \
  if (CUresult bad = check(x)) return bad

// around returns the allocation that at lies in, nullptr if it lies in none.
static const std::pair<const uintptr_t, allocation> *around(uintptr_t at) {
  auto i = live.upper_bound(at);
  if (i == live.begin()) return nullptr;
  --i;
  return at < i->first + i->second.bytes ? &*i : nullptr;
}

// astray says where a word among a kernel's arguments lies that is an address in no allocation, but near one; "" for all other words. No number is that
// near by chance: see take.
static std::string astray(uintptr_t word) {
  const uintptr_t near = 1 << 30;
  auto next = live.upper_bound(word);
  if (next != live.end() && next->first - word < near) return std::to_string(next->first - word) + " bytes before memory";
  if (next == live.begin()) return "";
  uintptr_t behind = word - (std::prev(next)->first + std::prev(next)->second.bytes);
  return behind < near ? std::to_string(behind) + " bytes behind memory" : "";
}

// usable reports whether a context may use the memory of another one.
static bool usable(CUcontext by, CUcontext of) { return by == of || by->reaches.count(of); }

// inside reports whether [at, at + bytes) lies in one allocation that owner may use; pinned memory is everybody's.
bool fake::inside(uintptr_t at, size_t bytes, bool host, CUcontext owner) {
  auto i = around(at);
  return i && i->second.host == host && at + bytes <= i->first + i->second.bytes && (host || usable(owner, i->second.context));
}
static bool inside(uintptr_t at, size_t bytes, bool host) { return inside(at, bytes, host, current); }

namespace {

bool intact(const unsigned char *p, size_t n) {
  for (size_t i = 0; i < n; i++)
    if (p[i] != poison) return false;
  return true;
}

// Memory comes from mmap, which gives addresses above 4 GiB: a heap may lie below, where a number of 4 bytes beside a zero among a kernel's
// arguments (a scale of 0.125 is 0x3e000000) looks like an address of it.
void *take(size_t bytes, bool host) {
  size_t whole = guard + (bytes + 511) / 512 * 512 + guard;
  unsigned char *base = (unsigned char *)mmap(nullptr, whole, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (base == MAP_FAILED) {
    fprintf(stderr, "fake device: no memory for %zu bytes\n", whole);
    abort();
  }
  memset(base, poison, whole);
  live[(uintptr_t)base + guard] = {bytes, current, host};
  return base + guard;
}

// let_go gives freed memory back to the system until no more than most bytes of it are kept, and looks whether it was written to.
CUresult let_go(size_t most) {
  bool clean = true;
  while (quarantined > most) {
    freed f = quarantine.front();
    quarantine.pop_front();
    quarantined -= f.bytes;
    clean &= intact(f.base, f.bytes);
    munmap(f.base, f.bytes);
  }
  return clean ? PB_SUCCESS : trouble(PB_ILLEGAL_ADDRESS, "something wrote to memory after it was freed");
}

CUresult give(uintptr_t at, bool host) {
  auto i = live.find(at);
  if (i == live.end() || i->second.host != host) return trouble(PB_INVALID_VALUE, "freed an address that was not allocated");
  size_t bytes = i->second.bytes, whole = guard + (bytes + 511) / 512 * 512 + guard;
  unsigned char *base = (unsigned char *)at - guard;
  if (!host) i->second.context->used -= bytes;
  live.erase(i);
  if (!intact(base, guard) || !intact(base + guard + bytes, whole - guard - bytes)) return trouble(PB_ILLEGAL_ADDRESS, "something wrote beside an allocation");
  memset(base, poison, whole);
  quarantine.push_back({base, whole});
  quarantined += whole;
  return let_go(quarantine_most);
}

}  // namespace

// step runs one operation of some stream that may go on; false: none can.
bool fake::step() {
  std::vector<CUstream> able;
  for (CUstream s : streams)
    if (!s->queue.empty() && s->queue.front().ready()) able.push_back(s);
  if (able.empty()) return false;
  std::sort(able.begin(), able.end(), [](CUstream a, CUstream b) { return a->id < b->id; });
  CUstream s = able[draw() % able.size()];
  operation o = std::move(s->queue.front());
  s->queue.pop_front();
  clock_now += passed(s->context);
  if (s->context->sticky == PB_SUCCESS) o.run();
  moved.notify_all();
  return true;
}

// cycle follows what the streams wait for from s on and returns the streams of a circle; open is set where the host may still do something.
static std::string cycle(CUstream s, std::vector<CUstream> &path, std::set<CUstream> &seen, bool &open) {
  auto at = std::find(path.begin(), path.end(), s);
  if (at != path.end()) {
    std::string text;
    for (; at != path.end(); ++at) text += (text.empty() ? "stream " : " waits for stream ") + std::to_string((*at)->id) + " of device " + std::to_string((*at)->context->device);
    return text + ", which waits for the first";
  }
  if (!streams.count(s) || s->queue.empty() || s->queue.front().ready() || !seen.insert(s).second) return "";
  std::vector<CUstream> next;
  open |= s->queue.front().waits(next);
  path.push_back(s);
  for (CUstream n : next) {
    std::string text = cycle(n, path, seen, open);
    if (!text.empty()) return text;
  }
  path.pop_back();
  return "";
}

// stuck says why no stream will ever go on, empty while the host may still do something about it.
static std::string stuck() {
  std::set<CUstream> seen;
  bool open = outside > 0;  // what another process does may have come since
  for (CUstream s : streams) {
    std::vector<CUstream> path;
    std::string text = cycle(s, path, seen, open);
    if (!text.empty()) return text;
  }
  return open ? "" : "a stream waits for an event that nobody will record";
}

static CUresult run_until(const std::function<bool()> &done) {
  auto since = std::chrono::steady_clock::now();
  while (!done()) {
    if (step()) {
      since = std::chrono::steady_clock::now();
    } else {
      std::string why = stuck();
      if (!why.empty()) return trouble(PB_UNKNOWN, "deadlock: " + why);
      uint64_t most = setting("FAKEGPU_PATIENCE", 0);  // other threads go on
      auto left = since + std::chrono::seconds(most) - std::chrono::steady_clock::now();
      if (outside)
        moved.wait_for(big, std::chrono::microseconds(100));
      else if (!most)
        moved.wait(big);
      else if (moved.wait_for(big, left) == std::cv_status::no_timeout)
        since = std::chrono::steady_clock::now();
      if (most && std::chrono::steady_clock::now() - since >= std::chrono::seconds(most))
        return trouble(PB_UNKNOWN, "deadlock: a peer has not issued its part for " + std::to_string(most) + " s");
    }
    if (current && current->sticky) return current->sticky;
  }
  return current ? current->sticky : PB_SUCCESS;
}

void fake::enqueue(CUstream s, std::function<void()> run, std::function<bool()> ready, std::function<bool(std::vector<CUstream> &)> waits) {
  if (s->captured) {
    spoil(s->captured, PB_CAPTURE_UNSUPPORTED, "an operation that no graph can have");
    return;
  }
  s->queue.push_back({std::move(ready), std::move(run), std::move(waits)});
  moved.notify_all();
  if (setting("FAKEGPU_EAGER", 0))
    while (step()) {
    }
}

CUresult fake::submit(CUstream s, const char *kind, std::function<void()> run) {
  if (auto c = s->captured) {
    if (c->invalid) return trouble(PB_CAPTURE_INVALIDATED, "the capture was spoilt before");
    c->nodes.push_back({kind, c->tails[s], std::move(run)});
    c->tails[s] = {c->nodes.size() - 1};
  } else {
    enqueue(s, std::move(run));
  }
  return PB_SUCCESS;
}

// all runs the nodes of a graph, in an order that is drawn from those that their dependencies leave.
static void all(const std::vector<node> &nodes, CUcontext context) {
  std::vector<bool> done(nodes.size());
  for (size_t left = nodes.size(); left; left--) {
    std::vector<size_t> able;
    for (size_t i = 0; i < nodes.size(); i++)
      if (!done[i] && std::all_of(nodes[i].deps.begin(), nodes[i].deps.end(), [&](size_t d) { return done[d]; })) able.push_back(i);
    size_t i = able[draw() % able.size()];
    done[i] = true;
    clock_now += passed(context);
    if (context->sticky == PB_SUCCESS) nodes[i].run();
  }
}

namespace {

void *self_handle() {
  Dl_info info;
  dladdr((void *)&trouble, &info);
  return dlopen(info.dli_fname, RTLD_NOW | RTLD_NOLOAD);
}

// number reads the decimal number behind key, searched from at up to end.
long number(const std::string &text, const char *key, size_t at, size_t end, long otherwise) {
  size_t i = text.find(key, at);
  return i == std::string::npos || i >= end ? otherwise : strtol(text.c_str() + i + strlen(key), nullptr, 10);
}

// What a module promises of a kernel: bytes of its parameter and threads of a block.
struct promise {
  size_t args = 0;
  unsigned threads = 1024;
};

CUresult promised_by_ptx(const std::string &ptx, std::map<std::string, promise> *out) {
  if (setting("CUDA_DISABLE_PTX_JIT", 0)) return trouble(PB_COMPILER_OFF, "CUDA_DISABLE_PTX_JIT switches the compiler off");
  if (ptx.find(".version 8.4") == std::string::npos) return trouble(PB_UNSUPPORTED_PTX, "the PTX is not of version 8.4, which drivers from 550 on load");
  if (ptx.find(".target sm_80") == std::string::npos) return trouble(PB_INVALID_PTX, "the PTX is not for sm_80");
  const char *key = ".visible .entry ";
  for (size_t at = ptx.find(key); at != std::string::npos; at = ptx.find(key, at + 1)) {
    size_t from = at + strlen(key), open = ptx.find('(', from), end = ptx.find("\n{", from);
    std::string name = ptx.substr(from, open - from);
    promise &k = (*out)[name];
    k.args = number(ptx, (name + "_param_0[").c_str(), open, end, 0);
    k.threads = (unsigned)number(ptx, ".maxntid ", open, end, 1024);
  }
  return PB_SUCCESS;
}

// promised_by_code reads an ELF file for NVIDIA's GPUs. Its flags name the architecture, in another place from version 8 of the format on. A GPU runs code
// that was made for its major version and at most its minor one. The attributes in a kernel's section .nv.info are: how the value is kept (4: as many
// bytes as the next two say, else in these two), what it is, value.
CUresult promised_by_code(const unsigned char *image, std::string *what, std::map<std::string, promise> *out) {
  const Elf64_Ehdr *head = (const Elf64_Ehdr *)image;
  if (head->e_machine != EM_CUDA || head->e_shentsize != sizeof(Elf64_Shdr)) return trouble(PB_INVALID_IMAGE, "the code is not for NVIDIA's GPUs");
  const int made = head->e_ident[EI_ABIVERSION] >= 8 ? head->e_flags >> 8 & 0xff : head->e_flags & 0xff;
  const int major = (int)setting("FAKEGPU_MAJOR", 8), minor = (int)setting("FAKEGPU_MINOR", 6);
  *what = "sm_" + std::to_string(made);
  if (made / 10 != major || made % 10 > minor)
    return trouble(PB_NO_BINARY, "code for " + *what + " on a device of compute capability " + std::to_string(major) + "." + std::to_string(minor));
  if (setting("CUDA_FORCE_PTX_JIT", 0)) return trouble(PB_NO_BINARY, "CUDA_FORCE_PTX_JIT wants PTX");
  const Elf64_Shdr *sections = (const Elf64_Shdr *)(image + head->e_shoff);
  const char *names = (const char *)image + sections[head->e_shstrndx].sh_offset;
  for (int i = 0; i < head->e_shnum; i++) {
    const std::string name = names + sections[i].sh_name, text = ".text.", info = ".nv.info.";
    if (name.rfind(text, 0) == 0) (*out)[name.substr(text.size())];
    if (name.rfind(info, 0) != 0) continue;
    promise &k = (*out)[name.substr(info.size())];
    const unsigned char *p = image + sections[i].sh_offset, *end = p + sections[i].sh_size;
    while (p + 4 <= end) {
      uint16_t value;
      memcpy(&value, p + 2, 2);
      uint32_t threads[3];
      if (p[0] != 4 && p[1] == 0x19) k.args = value;
      if (p[0] == 4 && p[1] == 0x05 && value == sizeof threads && p + 4 + value <= end) {
        memcpy(threads, p + 4, sizeof threads);
        k.threads = threads[0] * threads[1] * threads[2];
      }
      p += p[0] == 4 ? 4 + value : 4;
    }
  }
  return PB_SUCCESS;
}

}  // namespace

extern "C" __attribute__((visibility("default"))) CUresult cuCtxSynchronize();

namespace fakegpu {

CUcontext context() { return current; }

CUresult synchronize() { return cuCtxSynchronize(); }

CUresult enqueue(CUstream s, std::function<void()> run) {
  ENTER;
  CHECK(s);
  return submit(s, "library", std::move(run));
}

bool device_memory(const void *at, size_t bytes) {
  std::lock_guard<std::mutex> lock(big);
  return inside((uintptr_t)at, bytes, false);
}

void say(const std::string &text) {
  std::lock_guard<std::mutex> lock(big);
  trouble(PB_UNKNOWN, text);
}

}  // namespace fakegpu

#pragma GCC visibility push(default)
extern "C" {

CUresult cuInit(unsigned) {
  std::lock_guard<std::mutex> lock(big);
  if (setting("FAKEGPU_DEVICES", 1) == 0) return PB_NO_DEVICE;
  initialised = true;
  return PB_SUCCESS;
}

CUresult cuDriverGetVersion(int *v) {
  *v = (int)setting("FAKEGPU_DRIVER", 12040);
  return PB_SUCCESS;
}

CUresult cuGetErrorName(CUresult code, const char **out) {
#define NAME(name, theirs, value) \
  if (code == value && !strncmp(#theirs, "CUDA_", 5)) { *out = #theirs; return PB_SUCCESS; }
  PB_CONSTANTS(NAME)
  *out = nullptr;
  return PB_INVALID_VALUE;
}

// The text is that of the last trouble: the real driver has a fixed one a code.
CUresult cuGetErrorString(CUresult, const char **out) {
  static thread_local std::string copy;
  std::lock_guard<std::mutex> lock(big);
  copy = "fake device: " + fault;
  *out = copy.c_str();
  return PB_SUCCESS;
}

CUresult cuDeviceGetCount(int *n) {
  *n = (int)setting("FAKEGPU_DEVICES", 1);
  return PB_SUCCESS;
}

CUresult cuDeviceGet(CUdevice *d, int i) {
  if (i < 0 || i >= (int)setting("FAKEGPU_DEVICES", 1)) return trouble(PB_INVALID_DEVICE, "no such device");
  *d = i;
  return PB_SUCCESS;
}

CUresult cuDeviceGetName(char *out, int n, CUdevice d) {
  snprintf(out, n, "%s", of("FAKEGPU_NAMES", d, "Fake GPU").c_str());
  return PB_SUCCESS;
}

CUresult cuDeviceGetAttribute(int *out, CUdevice_attribute what, CUdevice) {
  switch (what) {
    case PB_ATTR_MULTIPROCESSORS: *out = 4; break;
    case PB_ATTR_MAJOR: *out = (int)setting("FAKEGPU_MAJOR", 8); break;
    case PB_ATTR_MINOR: *out = (int)setting("FAKEGPU_MINOR", 6); break;
    case PB_ATTR_SHARED_OPTIN: *out = shared_limit; break;
    default: return trouble(PB_INVALID_VALUE, "unknown attribute of a device: " + std::to_string(what));
  }
  return PB_SUCCESS;
}

CUresult cuDeviceTotalMem_v2(size_t *out, CUdevice d) {
  *out = memory_of(d);
  return PB_SUCCESS;
}

CUresult cuDeviceCanAccessPeer(int *out, CUdevice a, CUdevice b) {
  *out = a != b && setting("FAKEGPU_PEERS", 1);
  return PB_SUCCESS;
}

CUresult cuCtxEnablePeerAccess(CUcontext peer, unsigned flags) {
  ENTER;
  if (flags || peer == current || peer->users == 0) return trouble(PB_INVALID_VALUE, "access to a context that is none, or to its own");
  if (!setting("FAKEGPU_PEERS", 1)) return trouble(PB_PEER_UNSUPPORTED, "the devices do not reach each other");
  return current->reaches.insert(peer).second ? PB_SUCCESS : PB_PEER_ENABLED;
}

CUresult cuDevicePrimaryCtxRetain(CUcontext *out, CUdevice d) {
  std::lock_guard<std::mutex> lock(big);
  if (!initialised) return PB_NOT_INITIALIZED;
  if (!contexts[d]) contexts[d] = new CUctx_st{d};
  if (contexts[d]->users++ == 0) {
    contexts[d]->sticky = PB_SUCCESS;
    contexts[d]->reaches.clear();
    draw_state = setting("FAKEGPU_SEED", 1);
  }
  *out = contexts[d];
  return PB_SUCCESS;
}

CUresult cuDevicePrimaryCtxRelease_v2(CUdevice d) {
  std::lock_guard<std::mutex> lock(big);
  CUcontext c = contexts[d];
  if (!c || c->users == 0) return trouble(PB_INVALID_CONTEXT, "released a context that is not retained");
  if (--c->users) return PB_SUCCESS;
  if (c->sticky) {  // nobody could give anything back: it goes with the context
    for (auto i = live.begin(); i != live.end();) i = i->second.context == c ? live.erase(i) : std::next(i);
    for (auto i = streams.begin(); i != streams.end();) i = (*i)->context == c ? streams.erase(i) : std::next(i);
    for (auto i = events.begin(); i != events.end();) i = (*i)->context == c ? events.erase(i) : std::next(i);
    for (auto i = graphs.begin(); i != graphs.end();) i = (*i)->context == c ? graphs.erase(i) : std::next(i);
    for (auto i = execs.begin(); i != execs.end();) i = (*i)->context == c ? execs.erase(i) : std::next(i);
    c->used = 0;
    c->communicators = 0;
    return PB_SUCCESS;
  }
  size_t left = 0, bytes = 0, open = c->communicators;
  for (auto &a : live)
    if (a.second.context == c) {
      left++;
      bytes += a.second.bytes;
    }
  for (CUstream s : streams) open += s->context == c;
  for (CUevent e : events) open += e->context == c;
  for (CUgraph g : graphs) open += g->context == c;
  for (CUgraphExec x : execs) open += x->context == c;
  if (left || open)
    return trouble(PB_UNKNOWN, "leak: " + std::to_string(left) + " allocations of " + std::to_string(bytes) + " bytes and " + std::to_string(open) +
                                   " streams, events, graphs and communicators were not freed");
  return let_go(0);
}

CUresult cuCtxSetCurrent(CUcontext c) {
  fake::current = c;
  return PB_SUCCESS;
}

CUresult cuCtxSynchronize() {
  ENTER;
  CUcontext c = current;
  for (CUstream s : streams)
    if (s->context == c && s->captured) return spoil(s->captured, PB_CAPTURE_UNSUPPORTED, "a wait for the device while one of its streams is captured");
  return run_until([c] {
    for (CUstream s : streams)
      if (s->context == c && !s->queue.empty()) return false;
    return true;
  });
}

CUresult cuMemGetInfo_v2(size_t *free_bytes, size_t *total) {
  ENTER;
  *total = memory_of(current->device);
  *free_bytes = *total > current->used ? *total - current->used : 0;
  return PB_SUCCESS;
}

CUresult cuMemAlloc_v2(CUdeviceptr *out, size_t bytes) {
  ENTER;
  if (CUresult bad = unsafe("an allocation")) return bad;
  if (bytes == 0) return trouble(PB_INVALID_VALUE, "an allocation of 0 bytes");
  if (told("FAKEGPU_FULL") || current->used + bytes > memory_of(current->device)) return trouble(PB_OUT_OF_MEMORY, "out of memory");
  current->used += bytes;
  *out = (CUdeviceptr)take(bytes, false);
  return PB_SUCCESS;
}

CUresult cuMemFree_v2(CUdeviceptr p) {
  ENTER;
  if (CUresult bad = unsafe("memory given back")) return bad;
  return give(p, false);
}

// pageable reports whether a copy may use memory that is not page-locked.
static bool pageable(uintptr_t at) { return getenv("FAKEGPU_PINNED") && !around(at); }

CUresult cuMemHostAlloc(void **out, size_t bytes, unsigned) {
  ENTER;
  if (CUresult bad = unsafe("an allocation")) return bad;
  if (bytes > fake::setting("FAKEGPU_PINNED", SIZE_MAX)) return trouble(PB_OUT_OF_MEMORY, "no page-locked memory");
  *out = take(bytes, true);
  return PB_SUCCESS;
}

CUresult cuMemFreeHost(void *p) {
  ENTER;
  return give((uintptr_t)p, true);
}

CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr dst, const void *src, size_t n, CUstream s) {
  ENTER;
  CHECK(s);
  if (!inside(dst, n, false)) return trouble(PB_INVALID_VALUE, "a copy to memory that is not of the device");
  if (pageable((uintptr_t)src)) {  // staged at once
    auto staged = std::make_shared<std::vector<char>>((const char *)src, (const char *)src + n);
    return submit(s, "copy in", [=] { memcpy((void *)dst, staged->data(), n); });
  }
  if (!inside((uintptr_t)src, n, true)) return trouble(PB_INVALID_VALUE, "an asynchronous copy from memory that is not pinned");
  return submit(s, "copy in", [=] { memcpy((void *)dst, src, n); });
}

CUresult cuMemcpyDtoHAsync_v2(void *dst, CUdeviceptr src, size_t n, CUstream s) {
  ENTER;
  CHECK(s);
  if (!inside(src, n, false)) return trouble(PB_INVALID_VALUE, "a copy from memory that is not of the device");
  if (pageable((uintptr_t)dst)) {  // done when the call returns
    if (s->captured) return spoil(s->captured, PB_CAPTURE_UNSUPPORTED, "a copy to pageable memory in a stream that is captured");
    if (CUresult bad = submit(s, "copy out", [=] { memcpy(dst, (void *)src, n); })) return bad;
    return run_until([s] { return s->queue.empty(); });
  }
  if (!inside((uintptr_t)dst, n, true)) return trouble(PB_INVALID_VALUE, "an asynchronous copy to memory that is not pinned");
  return submit(s, "copy out", [=] { memcpy(dst, (void *)src, n); });
}

CUresult cuMemcpyDtoDAsync_v2(CUdeviceptr dst, CUdeviceptr src, size_t n, CUstream s) {
  ENTER;
  CHECK(s);
  if (!inside(dst, n, false) || !inside(src, n, false)) return trouble(PB_INVALID_VALUE, "a copy between memory that is not of the device");
  int from = around(src)->second.context->device, to = around(dst)->second.context->device;
  return submit(s, "copy", [=] {
    travelled(from, to, n);
    memcpy((void *)dst, (void *)src, n);
  });
}

CUresult cuMemcpyPeerAsync(CUdeviceptr dst, CUcontext to, CUdeviceptr src, CUcontext from, size_t n, CUstream s) {
  ENTER;
  CHECK(s);
  if (to == from || !inside(dst, n, false, to) || !inside(src, n, false, from)) return trouble(PB_INVALID_VALUE, "a copy between devices of memory that is not theirs");
  return submit(s, "copy", [=] {
    travelled(from->device, to->device, n);
    memcpy((void *)dst, (void *)src, n);
  });
}

CUresult cuMemsetD8Async(CUdeviceptr dst, unsigned char v, size_t n, CUstream s) {
  ENTER;
  CHECK(s);
  if (!inside(dst, n, false)) return trouble(PB_INVALID_VALUE, "set memory that is not of the device");
  return submit(s, "set", [=] { memset((void *)dst, v, n); });
}

CUresult cuStreamCreateWithPriority(CUstream *out, unsigned flags, int priority) {
  ENTER;
  if (flags != PB_STREAM_NON_BLOCKING) return trouble(PB_INVALID_VALUE, "streams here do not block");
  *out = new CUstream_st{current, streams_made++, {}};
  (*out)->priority = std::max(priority, -5);
  streams.insert(*out);
  return PB_SUCCESS;
}

CUresult cuStreamDestroy_v2(CUstream s) {
  ENTER;
  CHECK(s);
  if (s->captured) return spoil(s->captured, PB_CAPTURE_UNSUPPORTED, "a stream destroyed that is captured");
  CUresult r = run_until([s] { return s->queue.empty(); });
  streams.erase(s);
  delete s;
  return r;
}

CUresult cuStreamSynchronize(CUstream s) {
  ENTER;
  CHECK(s);
  if (s->captured) return spoil(s->captured, PB_CAPTURE_UNSUPPORTED, "a wait for a stream that is captured");
  return run_until([s] { return s->queue.empty(); });
}

CUresult cuStreamWaitEvent(CUstream s, CUevent e, unsigned) {
  ENTER;
  CHECK(s);
  CHECK(e);
  if (e->in) {
    if (e->in->ended) return spoil(s->captured, PB_CAPTURE_ISOLATION, "a wait for an event of a capture that has ended");
    if (s->captured && s->captured != e->in) return spoil(s->captured, PB_CAPTURE_MERGE, "a wait that would join two captures");
    s->captured = e->in;
    e->in->tails[s].insert(e->at.begin(), e->at.end());
    return PB_SUCCESS;
  }
  auto r = e->last;
  if (!r) return PB_SUCCESS;  // an event that was never recorded is no wait at all
  if (s->captured) return spoil(s->captured, PB_CAPTURE_ISOLATION, "a captured stream waits for an event from outside");
  enqueue(s, [] {}, [r] { return r->done; }, [r](std::vector<CUstream> &on) {
    on.push_back(r->by);
    return false;
  });
  return PB_SUCCESS;
}

CUresult cuStreamWriteValue32_v2(CUstream s, CUdeviceptr at, uint32_t v, unsigned flags) {
  ENTER;
  CHECK(s);
  if (flags != PB_WRITE_DEFAULT) return trouble(PB_INVALID_VALUE, "values are written behind a barrier here");
  if (s->captured) return spoil(s->captured, PB_CAPTURE_UNSUPPORTED, "a value written by a stream that is captured");
  if (at % 4 || (!inside(at, 4, true) && !inside(at, 4, false))) return trouble(PB_INVALID_VALUE, "a value written to memory that the device does not reach");
  enqueue(s, [=] { __atomic_store_n((uint32_t *)at, v, __ATOMIC_RELEASE); });
  return PB_SUCCESS;
}

CUresult cuEventCreate(CUevent *out, unsigned flags) {
  ENTER;
  *out = new CUevent_st{current, (flags & PB_EVENT_NO_TIMING) == 0};
  events.insert(*out);
  return PB_SUCCESS;
}

CUresult cuEventDestroy_v2(CUevent e) {
  ENTER;
  CHECK(e);
  run_until([e] { return e->done(); });
  events.erase(e);
  delete e;
  return PB_SUCCESS;
}

CUresult cuEventRecord(CUevent e, CUstream s) {
  ENTER;
  CHECK(s);
  CHECK(e);
  if (e->context != s->context) return trouble(PB_INVALID_HANDLE, "an event of another context");
  if ((e->in = s->captured)) {
    e->at = e->in->tails[s];
    return PB_SUCCESS;
  }
  auto r = e->last = std::make_shared<record>();
  r->by = s;
  enqueue(s, [r] {
    r->done = true;
    r->at = clock_now;
  });
  return PB_SUCCESS;
}

CUresult cuEventQuery(CUevent e) {
  ENTER;
  CHECK(e);
  if (e->in) return spoil(e->in, PB_CAPTURED_EVENT, "the host asks for an event that was recorded in a capture");
  if (e->done()) return PB_SUCCESS;
  step();
  if (current->sticky) return current->sticky;
  return e->done() ? PB_SUCCESS : PB_NOT_READY;
}

CUresult cuEventSynchronize(CUevent e) {
  ENTER;
  CHECK(e);
  if (e->in) return spoil(e->in, PB_CAPTURED_EVENT, "the host asks for an event that was recorded in a capture");
  return run_until([e] { return e->done(); });
}

CUresult cuEventElapsedTime(float *out, CUevent a, CUevent b) {
  ENTER;
  CHECK(a);
  CHECK(b);
  if (!a->timing || !b->timing || !a->last || !b->last) return trouble(PB_INVALID_HANDLE, "time between events without times");
  if (!a->done() || !b->done()) return PB_NOT_READY;
  *out = (float)(b->last->at - a->last->at);
  return PB_SUCCESS;
}

// Of a module the fake takes what a kernel promises: its name, the size of its parameter and its launch bound. The code is that which the fake was built with.
CUresult cuModuleLoadData(CUmodule *out, const void *image) {
  ENTER;
  std::map<std::string, promise> found;
  std::string what = "PTX";
  if (CUresult r = !memcmp(image, "\x7f" "ELF", 4) ? promised_by_code((const unsigned char *)image, &what, &found) : promised_by_ptx((const char *)image, &found))
    return r;
  CUmodule m = new CUmod_st{current, {}};
  for (auto &k : found) {
    void *code = dlsym(self_handle(), k.first.c_str());
    if (!code) return trouble(PB_INVALID_IMAGE, "the module has kernel " + k.first + ", which the fake was not built with");
    m->functions[k.first] = new CUfunc_st{current, k.first, code, k.second.args, k.second.threads};
  }
  if (const char *path = getenv("FAKEGPU_LOADED"))
    if (FILE *to = fopen(path, "a")) {
      fprintf(to, "%s\n", what.c_str());
      fclose(to);
    }
  *out = m;
  return PB_SUCCESS;
}

CUresult cuModuleUnload(CUmodule m) {
  ENTER;
  for (auto &f : m->functions) delete f.second;
  delete m;
  return PB_SUCCESS;
}

CUresult cuModuleGetFunction(CUfunction *out, CUmodule m, const char *name) {
  ENTER;
  auto f = m->functions.find(name);
  if (f == m->functions.end()) return trouble(PB_NOT_FOUND, std::string("no kernel ") + name);
  *out = f->second;
  return PB_SUCCESS;
}

CUresult cuFuncSetAttribute(CUfunction f, CUfunction_attribute what, int v) {
  ENTER;
  if (what != PB_FUNC_MAX_SHARED) return trouble(PB_INVALID_VALUE, "unknown attribute of a function: " + std::to_string(what));
  if (v > shared_limit) return trouble(PB_INVALID_VALUE, f->name + " asks for " + std::to_string(v) + " bytes of shared memory");
  f->shared = std::max(f->shared, v);
  return PB_SUCCESS;
}

CUresult cuFuncGetAttribute(int *out, CUfunction_attribute what, CUfunction f) {
  ENTER;
  if (what == PB_FUNC_MAX_THREADS) return *out = (int)f->threads, PB_SUCCESS;
  if (what == PB_FUNC_MAX_SHARED) return *out = f->shared, PB_SUCCESS;
  if (what == PB_FUNC_LOCAL_BYTES || what == PB_FUNC_REGISTERS) return *out = 0, PB_SUCCESS;
  return trouble(PB_INVALID_VALUE, "unknown attribute of a function: " + std::to_string(what));
}

CUresult cuLaunchKernel(CUfunction f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared, CUstream s,
                        void **params, void **extra) {
  ENTER;
  CHECK(s);
  const std::string &n = f->name;
  if (f->context != current) return trouble(PB_INVALID_HANDLE, n + ": a function of another context");
  if (!params || extra) return trouble(PB_INVALID_VALUE, n + ": parameters come as pointers here");
  if (!gx || !gy || !gz || gx > 0x7fffffff || gy > 65535 || gz > 65535) return trouble(PB_INVALID_VALUE, n + ": grid " + std::to_string(gx) + ", " + std::to_string(gy) + ", " + std::to_string(gz));
  if (!bx || by != 1 || bz != 1 || bx > 1024) return trouble(PB_INVALID_VALUE, n + ": block of " + std::to_string(bx));
  if (bx > f->threads) return trouble(PB_OUT_OF_RESOURCES, n + ": " + std::to_string(bx) + " threads, its bound is " + std::to_string(f->threads));
  if ((int)shared > f->shared) return trouble(PB_INVALID_VALUE, n + ": " + std::to_string(shared) + " bytes of shared memory, allowed are " + std::to_string(f->shared));
  std::vector<unsigned char> args((unsigned char *)params[0], (unsigned char *)params[0] + f->args);
  for (size_t i = 0; i + 8 <= args.size(); i += 8) {
    uint64_t word;
    memcpy(&word, &args[i], 8);
    auto a = around(word);
    if (a && !a->second.host && !usable(current, a->second.context)) return trouble(PB_ILLEGAL_ADDRESS, n + ": memory of a device that this one does not reach");
    std::string where = a ? "" : astray(word);
    if (!where.empty()) return trouble(PB_ILLEGAL_ADDRESS, n + ": an argument is an address " + where);
  }
  if (told("FAKEGPU_REFUSE")) return trouble(PB_INVALID_VALUE, n + ": refused, as it was told to");
  if (!s->captured && told("FAKEGPU_HANG")) {  // and all behind it
    enqueue(s, [] {}, [] { return false; }, [](std::vector<CUstream> &) { return true; });
    return PB_SUCCESS;
  }
  bool broken = told("FAKEGPU_BREAK");
  return submit(s, "kernel", [=] {
    if (broken) {
      f->context->sticky = trouble(PB_ILLEGAL_ADDRESS, f->name + " breaks the device, as it was told to");
      return;
    }
    const char *landing = getenv("FAKEGPU_LANDING");
    fk::landing when = landing && !strcmp(landing, "once") ? fk::AT_ONCE : fk::LATE;
    const uint64_t before = fk::counted.work;
    const char *bad = fk::launch(f->code, args.data(), args.size(), {gx, gy, gz}, {bx, by, bz}, shared, when, draw());
    if (const char *path = getenv("FAKEGPU_COUNT"))
      if (FILE *to = fopen(path, "a")) {
        fprintf(to, "%s %llu\n", f->name.c_str(), (unsigned long long)(fk::counted.work - before));
        fclose(to);
      }
    if (bad) f->context->sticky = trouble(PB_LAUNCH_FAILED, f->name + ": " + bad);
  });
}

CUresult cuStreamBeginCapture_v2(CUstream s, CUstreamCaptureMode mode) {
  ENTER;
  CHECK(s);
  if (s->captured) return spoil(s->captured, PB_INVALID_VALUE, "the stream is captured already");
  if (told("FAKEGPU_REFUSE_CAPTURE")) return trouble(PB_CAPTURE_UNSUPPORTED, "a capture refused, as it was told to");
  s->captured = std::make_shared<capture>(capture{s, mode, std::this_thread::get_id()});
  s->captured->tails[s] = {};
  return PB_SUCCESS;
}

CUresult cuStreamEndCapture(CUstream s, CUgraph *out) {
  ENTER;
  CHECK(s);
  *out = nullptr;
  auto c = s->captured;
  if (!c) return trouble(PB_INVALID_VALUE, "the stream is not captured");
  if (c->origin != s) return spoil(c, PB_CAPTURE_UNMATCHED, "a capture that began in another stream");
  if (c->mode != PB_CAPTURE_RELAXED && c->by != std::this_thread::get_id())
    return spoil(c, PB_CAPTURE_WRONG_THREAD, "a capture that began on another thread");
  c->ended = true;
  for (auto &t : c->tails) t.first->captured = nullptr;
  if (c->invalid) return trouble(PB_CAPTURE_INVALIDATED, "the capture was spoilt before");
  std::set<size_t> joined = c->tails[s];
  for (size_t i = c->nodes.size(); i-- > 0;)
    if (joined.count(i)) joined.insert(c->nodes[i].deps.begin(), c->nodes[i].deps.end());
  for (auto &t : c->tails)
    for (size_t i : t.second)
      if (!joined.count(i)) return trouble(PB_CAPTURE_UNJOINED, "the stream does not wait for what another one was given in its capture");
  *out = new CUgraph_st{current, c->nodes};
  graphs.insert(*out);
  return PB_SUCCESS;
}

CUresult cuGraphGetNodes(CUgraph g, CUgraphNode *nodes, size_t *count) {
  ENTER;
  CHECK(g);
  if (nodes) return trouble(PB_INVALID_VALUE, "the fake device counts nodes, it does not list them");
  *count = g->nodes.size();
  return PB_SUCCESS;
}

CUresult cuGraphInstantiateWithFlags(CUgraphExec *out, CUgraph g, unsigned long long flags) {
  ENTER;
  CHECK(g);
  if (flags) return trouble(PB_INVALID_VALUE, "graphs are instantiated without flags here");
  *out = new CUgraphExec_st{current, std::make_shared<std::vector<node>>(g->nodes)};
  execs.insert(*out);
  return PB_SUCCESS;
}

// Arguments may be others, kinds and dependencies of the nodes may not.
CUresult cuGraphExecUpdate_v2(CUgraphExec x, CUgraph g, CUgraphExecUpdateResultInfo *info) {
  ENTER;
  CHECK(x);
  CHECK(g);
  *info = {PB_UPDATE_SUCCESS, nullptr, nullptr};
  bool same = x->nodes->size() == g->nodes.size();
  for (size_t i = 0; same && i < g->nodes.size(); i++) same = (*x->nodes)[i].kind == g->nodes[i].kind && (*x->nodes)[i].deps == g->nodes[i].deps;
  if (!same) {
    info->result = PB_UPDATE_TOPOLOGY;
    return PB_GRAPH_UPDATE_FAILURE;
  }
  x->nodes = std::make_shared<std::vector<node>>(g->nodes);  // launches under way go on with what they have
  return PB_SUCCESS;
}

CUresult cuGraphLaunch(CUgraphExec x, CUstream s) {
  ENTER;
  CHECK(x);
  CHECK(s);
  if (x->context != s->context) return trouble(PB_INVALID_VALUE, "a graph of another context");
  if (told("FAKEGPU_REFUSE")) return trouble(PB_INVALID_VALUE, "a graph refused, as it was told to");
  bool broken = told("FAKEGPU_BREAK");
  auto nodes = x->nodes;
  enqueue(s, [=] {
    if (broken)
      s->context->sticky = trouble(PB_ILLEGAL_ADDRESS, "a graph breaks the device, as it was told to");
    else
      all(*nodes, s->context);
  });
  return PB_SUCCESS;
}

CUresult cuGraphDestroy(CUgraph g) {
  ENTER;
  CHECK(g);
  graphs.erase(g);
  delete g;
  return PB_SUCCESS;
}

CUresult cuGraphExecDestroy(CUgraphExec x) {
  ENTER;
  CHECK(x);
  execs.erase(x);
  delete x;
  return PB_SUCCESS;
}

}  // extern "C"
