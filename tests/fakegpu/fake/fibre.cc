#include "fibre.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#ifndef __x86_64__
#error "the fake device switches stacks by hand, and knows x86-64 only"
#endif

namespace fk {

block_state block;
counters counted;

namespace {

enum state { READY, AT_BARRIER, AT_COLLECTIVE, DONE };

struct pending {
  unsigned char* dst;
  const unsigned char* src;
  int bytes, group;
};

constexpr size_t stack_bytes = 64 << 10;
constexpr size_t shared_most = 256 << 10;

}  // namespace

struct fibre : thread_view {
  void* sp;
  state at;
  op kind;
  int lanes, in_bytes, out_bytes;
  alignas(16) unsigned char in[48];
  void* out;
  int group;  // number of the asynchronous group that collects now
  std::vector<pending> copies;
};

namespace {

std::vector<fibre> fibres;
unsigned char* stacks;
fibre* current;
void* scheduler_sp;
char message[256];
bool failed;
landing lands;
void* kernel;
const unsigned char* kernel_args;
size_t kernel_bytes;

extern "C" void fk_switch(void** save, void* to);
__asm__(
    ".text\n.globl fk_switch\n.hidden fk_switch\n.type fk_switch,@function\nfk_switch:\n"
    "pushq %rbp\npushq %rbx\npushq %r12\npushq %r13\npushq %r14\npushq %r15\n"
    "movq %rsp,(%rdi)\nmovq %rsi,%rsp\n"
    "popq %r15\npopq %r14\npopq %r13\npopq %r12\npopq %rbx\npopq %rbp\nret\n"
    ".size fk_switch,.-fk_switch\n");

void leave(state at) {
  current->at = at;
  counted.switches++;
  fk_switch(&current->sp, scheduler_sp);
}

void fail(const char* text) {
  if (!failed) {
    snprintf(message, sizeof message, "%s (block %u,%u,%u thread %u)", text, block.index.x, block.index.y, block.index.z, current ? current->thread.x : 0);
  }
  failed = true;
}

// A parameter of more than two words is passed in memory, at the same place whatever its size.
template <size_t n>
struct by_value {
  unsigned char b[n];
};
template <size_t n>
void call() {
  by_value<n> v;
  memcpy(v.b, kernel_args, kernel_bytes);
  ((void (*)(by_value<n>))kernel)(v);
}

extern "C" void fk_entry() {
  if (kernel_bytes <= 256)
    call<256>();
  else
    call<1024>();
  if (!current->copies.empty()) fail("a thread ended with asynchronous copies under way");
  leave(DONE);
  abort();
}

void prepare(fibre& f, unsigned i) {
  f.thread = {i, 0, 0};
  f.at = READY;
  f.group = 0;
  f.copies.clear();
  // The frame that fk_switch pops: six registers and the entry, so that the entry finds the stack as after a call.
  void** top = (void**)(stacks + (i + 1) * stack_bytes) - 2;
  top[0] = (void*)fk_entry;
  top[1] = nullptr;
  memset(top - 6, 0, 6 * sizeof(void*));
  f.sp = top - 6;
}

float half_of(uint32_t pair, int high) {
  uint32_t u = high ? pair & 0xffff0000u : pair << 16;
  float f;
  memcpy(&f, &u, 4);
  return f;
}

bool inside(uint32_t at, size_t bytes, size_t align) { return at % align == 0 && at + bytes <= block.shared_bytes; }

void load_matrices(fibre* w, bool transposed) {
  uint32_t rows[32];
  for (int l = 0; l < 32; l++) {
    memcpy(&rows[l], w[l].in, 4);
    if (!inside(rows[l], 16, 16)) {
      fail("ldmatrix outside of shared memory or not aligned to 16 bytes");
      return;
    }
  }
  for (int l = 0; l < 32; l++) {
    uint32_t r[4];
    for (int m = 0; m < 4; m++) {
      if (!transposed) {
        memcpy(&r[m], block.shared + rows[m * 8 + l / 4] + 4 * (l % 4), 4);
        continue;
      }
      uint16_t low, high;
      memcpy(&low, block.shared + rows[m * 8 + l % 4 * 2] + 2 * (l / 4), 2);
      memcpy(&high, block.shared + rows[m * 8 + l % 4 * 2 + 1] + 2 * (l / 4), 2);
      r[m] = low | (uint32_t)high << 16;
    }
    memcpy(w[l].out, r, 16);
  }
}

// The fragments of mma.m16n8k16, as the PTX manual draws them.
void multiply(fibre* w) {
  float a[16][16], b[8][16], c[4];
  for (int l = 0; l < 32; l++) {
    uint32_t in[6];
    memcpy(in, w[l].in, 24);
    for (int r = 0; r < 4; r++)
      for (int h = 0; h < 2; h++) a[l / 4 + 8 * (r & 1)][l % 4 * 2 + h + 8 * (r >> 1)] = half_of(in[r], h);
    for (int r = 0; r < 2; r++)
      for (int h = 0; h < 2; h++) b[l / 4][l % 4 * 2 + h + 8 * r] = half_of(in[4 + r], h);
  }
  for (int l = 0; l < 32; l++) {
    memcpy(c, w[l].in + 24, 16);
    for (int e = 0; e < 4; e++) {
      const float *x = a[l / 4 + 8 * (e >> 1)], *y = b[l % 4 * 2 + (e & 1)];
      float sum = 0;
      for (int k = 0; k < 16; k++) sum += x[k] * y[k];
      c[e] += sum;
    }
    memcpy(w[l].out, c, 16);
  }
}

// The fragments of mma.m16n8k32 of signed 8-bit integers.
void multiply8(fibre* w) {
  int8_t a[16][32], b[8][32];
  int32_t c[4];
  for (int l = 0; l < 32; l++) {
    const int8_t* in = (const int8_t*)w[l].in;
    for (int r = 0; r < 4; r++)
      for (int i = 0; i < 4; i++) a[l / 4 + 8 * (r & 1)][l % 4 * 4 + i + 16 * (r >> 1)] = in[4 * r + i];
    for (int r = 0; r < 2; r++)
      for (int i = 0; i < 4; i++) b[l / 4][l % 4 * 4 + i + 16 * r] = in[16 + 4 * r + i];
  }
  for (int l = 0; l < 32; l++) {
    memcpy(c, w[l].in + 24, 16);
    for (int e = 0; e < 4; e++)
      for (int k = 0; k < 32; k++) c[e] += a[l / 4 + 8 * (e >> 1)][k] * b[l % 4 * 2 + (e & 1)][k];
    memcpy(w[l].out, c, 16);
  }
}

void perform(fibre* w) {
  for (int l = 1; l < 32; l++)
    if (w[l].kind != w[0].kind || w[l].lanes != w[0].lanes || w[l].in_bytes != w[0].in_bytes) {
      fail("lanes of a warp meet in different operations");
      return;
    }
  switch (w[0].kind) {
    case XOR:
      for (int l = 0; l < 32; l++) memcpy(w[l].out, w[l ^ w[0].lanes].in, w[l].in_bytes);
      break;
    case LDM: load_matrices(w, false); break;
    case LDMT: load_matrices(w, true); break;
    case MMA: multiply(w); break;
    case MMA8: multiply8(w); break;
    default: break;
  }
  for (int l = 0; l < 32; l++) w[l].at = READY;
}

// run_warp runs the lanes of a warp until all wait at the barrier or have ended. It reports whether anything ran.
bool run_warp(fibre* w) {
  bool any = false;
  while (!failed) {
    int ready = 0, meeting = 0;
    for (int l = 0; l < 32; l++)
      if (w[l].at == READY) {
        current = &w[l];
        fk_switch(&scheduler_sp, w[l].sp);
        ready++;
      }
    for (int l = 0; l < 32; l++) meeting += w[l].at == AT_COLLECTIVE;
    any |= ready > 0;
    if (meeting == 32) {
      perform(w);
      continue;
    }
    if (meeting > 0) fail("a warp diverged at an operation that needs all of its lanes");
    break;
  }
  return any;
}

void run_block(unsigned threads, uint64_t seed) {
  memset(block.shared, 0xff, block.shared_bytes);
  for (unsigned i = 0; i < threads; i++) prepare(fibres[i], i);
  unsigned warps = threads / 32;
  while (!failed) {
    bool any = false;
    for (unsigned i = 0; i < warps; i++) {
      // Two orders: from some warp upwards, and from some warp downwards.
      unsigned at = (unsigned)((seed + (seed >> 8 & 1 ? i : warps - i)) % warps);
      any |= run_warp(&fibres[at * 32]);
    }
    if (failed) return;
    unsigned waiting = 0, done = 0;
    for (unsigned i = 0; i < threads; i++) {
      waiting += fibres[i].at == AT_BARRIER;
      done += fibres[i].at == DONE;
    }
    if (done == threads) return;
    if (waiting == threads) {
      for (unsigned i = 0; i < threads; i++) fibres[i].at = READY;
      seed = seed * 6364136223846793005u + 1442695040888963407u;
      continue;
    }
    if (done > 0 && done + waiting == threads) fail("threads ended while others wait at a barrier");
    if (!any) fail("deadlock");
  }
}

// shared_memory returns bytes that end at a page nobody may touch.
unsigned char* shared_memory(size_t bytes) {
  static unsigned char* area;
  size_t page = (size_t)sysconf(_SC_PAGESIZE);
  if (!area) {
    area = (unsigned char*)mmap(nullptr, shared_most + page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    mprotect(area + shared_most, page, PROT_NONE);
  }
  return area + shared_most - (bytes + 127) / 128 * 128;
}

}  // namespace

thread_view* self() { return current; }

void barrier() { leave(AT_BARRIER); }

void full(unsigned mask) {
  if (mask != ~0u) fail("the fake device knows warp operations of all lanes only");
}

void collective(op kind, const void* in, int in_bytes, void* out, int out_bytes, int lanes) {
  fibre* f = current;
  f->kind = kind;
  f->lanes = lanes;
  f->in_bytes = in_bytes;
  f->out = out;
  f->out_bytes = out_bytes;
  if (in_bytes) memcpy(f->in, in, in_bytes);
  leave(AT_COLLECTIVE);
}

uint32_t shared_offset(const void* p) {
  size_t at = (const unsigned char*)p - block.shared;
  if (at > block.shared_bytes) fail("an address outside of shared memory");
  return (uint32_t)at;
}

void stop(const char* text) {
  fail(text);
  leave(DONE);
  abort();
}

static void land(const pending& c) {
  memcpy(c.dst, c.src, c.bytes);
  memset(c.dst + c.bytes, 0, 16 - c.bytes);
}

void copy_async(uint32_t dst, const void* src, int bytes) {
  if (!inside(dst, 16, 16) || bytes < 0 || bytes > 16) {
    fail("cp.async outside of shared memory, not aligned or of a wrong size");
    return;
  }
  if ((uintptr_t)src % 16) fail("cp.async from an address that is not aligned to 16 bytes");
  pending c = {block.shared + dst, (const unsigned char*)src, bytes, current->group};
  if (lands == AT_ONCE) land(c);
  current->copies.push_back(c);
}

void copy_commit() { current->group++; }

void copy_wait(int left) {
  auto& list = current->copies;
  size_t kept = 0;
  for (auto& c : list) {
    if (c.group >= current->group - left)
      list[kept++] = c;
    else if (lands == LATE)
      land(c);
  }
  list.resize(kept);
}

const char* launch(void* fn, const void* args, size_t bytes, dim3 grid, dim3 threads, size_t shared, landing when, uint64_t seed) {
  if (!stacks) {
    stacks = (unsigned char*)mmap(nullptr, 1024 * stack_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    fibres.resize(1024);
  }
  if (bytes <= 16 || bytes > 1024) return "the fake device passes parameters of 17 to 1024 bytes";
  if (threads.x % 32 || threads.y != 1 || threads.z != 1) return "the fake device runs blocks of whole warps in one dimension";
  kernel = fn;
  kernel_args = (const unsigned char*)args;
  kernel_bytes = bytes;
  lands = when;
  failed = false;
  block.threads = threads;
  block.grid = grid;
  block.shared_bytes = shared;
  block.shared = shared_memory(shared);
  counted.launches++;
  const uint64_t blocks = (uint64_t)grid.x * grid.y * grid.z;
  for (uint64_t i = 0; i < blocks && !failed; i++) {
    uint64_t at = seed >> 9 & 1 ? blocks - 1 - i : i;
    block.index = {(unsigned)(at % grid.x), (unsigned)(at / grid.x % grid.y), (unsigned)(at / grid.x / grid.y)};
    counted.blocks++;
    run_block(threads.x, seed + block.index.x * 7 + block.index.y * 13 + block.index.z * 31);
  }
  return failed ? message : nullptr;
}

}  // namespace fk
