// CUDA threads of a block as fibres of one CPU thread. Blocks run one after another, from the first or from the last, warps in an order that depends on a seed, and a fibre runs until it
// meets others: at a barrier of the block or in an operation of its warp. Lanes that meet in different operations, or threads that end while others
// wait, are errors. Shared memory ends at a page that may not be touched and starts as NaN; asynchronous copies land as late as allowed or at once.
#pragma once
#include <cstddef>
#include <cstdint>

namespace fk {

struct dim3 {
  unsigned x, y, z;
};

// The operations of a warp.
enum op { NONE, SYNC, XOR, LDM, LDMT, MMA, MMA8 };

// The block that runs now.
struct block_state {
  dim3 index, threads, grid;
  unsigned char* shared;  // ends, rounded up to 16 bytes, at a forbidden page
  size_t shared_bytes;
};
extern block_state block;

struct fibre;
struct thread_view {
  dim3 thread;
};
thread_view* self();

void barrier();
// collective hands in to a warp's operation and takes out of it; all 32 lanes must come.
void collective(op kind, const void* in, int in_bytes, void* out, int out_bytes, int lanes);
void full(unsigned mask);
uint32_t shared_offset(const void* p);
// stop ends the launch with what went wrong in the thread that runs.
[[noreturn]] void stop(const char* text);
void copy_async(uint32_t dst, const void* src, int bytes);
void copy_commit();
void copy_wait(int left);

// When asynchronous copies land: as late as their wait allows, or when they are issued.
enum landing { LATE, AT_ONCE };

// launch runs a grid of fn, whose only parameter has the given bytes and is passed by value. It returns nullptr, or what went wrong.
const char* launch(void* fn, const void* args, size_t bytes, dim3 grid, dim3 threads, size_t shared, landing when, uint64_t seed);

// Counters of the last launches, for reports. Work is that of all threads, in instructions (see cost in ../ptx), of kernels translated from PTX.
struct counters {
  uint64_t launches, blocks, switches, work;
};
extern counters counted;

}  // namespace fk
