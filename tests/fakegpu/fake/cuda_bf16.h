// Takes the place of CUDA's header when g++ compiles the kernels for the fake device: qualifiers, built-in variables, conversions, and the functions
// that kernels call, on fibres (fibre.h).
#pragma once
#include <cmath>
#include <cstdint>
#include <cstring>

#include "fibre.h"

#define __device__
#define __global__ __attribute__((visibility("default")))
#define __forceinline__ inline
#define __grid_constant__
#define __launch_bounds__(...)
#define __align__(n) alignas(n)

#define threadIdx (fk::self()->thread)
#define blockIdx (fk::block.index)
#define blockDim (fk::block.threads)
#define gridDim (fk::block.grid)
#define pool (fk::block.shared)

static inline uint32_t __float_as_uint(float f) {
  uint32_t u;
  memcpy(&u, &f, 4);
  return u;
}
static inline float __uint_as_float(uint32_t u) {
  float f;
  memcpy(&f, &u, 4);
  return f;
}

struct __nv_bfloat16 {
  uint16_t bits;
};
struct __nv_bfloat162 {
  __nv_bfloat16 x, y;
};
static inline float __bfloat162float(__nv_bfloat16 v) { return __uint_as_float((uint32_t)v.bits << 16); }
static inline __nv_bfloat16 __float2bfloat16_rn(float f) {
  uint32_t u = __float_as_uint(f);
  if (f != f) return {0x7fff};
  return {(uint16_t)((u + 0x7fff + ((u >> 16) & 1)) >> 16)};
}
static inline __nv_bfloat162 __floats2bfloat162_rn(float a, float b) { return {__float2bfloat16_rn(a), __float2bfloat16_rn(b)}; }

static inline int min(int a, int b) { return a < b ? a : b; }
static inline uint32_t __umulhi(uint32_t a, uint32_t b) { return (uint32_t)((uint64_t)a * b >> 32); }
static inline int max(int a, int b) { return a > b ? a : b; }
static inline uint32_t max(uint32_t a, uint32_t b) { return a > b ? a : b; }
static inline float rsqrtf(float x) { return (float)(1 / std::sqrt((double)x)); }
#define __expf(x) std::exp((float)(x))  // macros: these names are taken by the C library
static inline float exp2_fast(float x) { return std::exp2(x); }
// As specified: 0 for divisors beyond 2^126, NaN where the dividend is infinite then.
static inline float __fdividef(float a, float b) { return std::fabs(b) > 0x1p126f && b == b ? a * 0.f : a / b; }
static inline float __fdiv_rn(float a, float b) { return a / b; }
static inline float __fmul_rn(float a, float b) { return a * b; }
static inline float __fadd_rn(float a, float b) { return a + b; }
static inline float __fsub_rn(float a, float b) { return a - b; }
static inline float __fmaf_rn(float a, float b, float c) { return std::fma(a, b, c); }
static inline float __fsqrt_rn(float a) { return std::sqrt(a); }
static inline int __float2int_rn(float x) { return (int)std::lrintf(x); }

// f16_float widens a binary16; exact.
static inline float f16_float(uint16_t h) {
  uint32_t sign = (uint32_t)(h & 0x8000) << 16, rest = (uint32_t)(h & 0x7fff) << 13;
  if (rest >= 31u << 23) return __uint_as_float(sign | rest | 0xffu << 23);
  return __uint_as_float(sign | __float_as_uint(__uint_as_float(rest) * 0x1p112f));
}

static inline void __syncthreads() { fk::barrier(); }
static inline void __syncwarp() { fk::collective(fk::SYNC, nullptr, 0, nullptr, 0, 0); }

template <class V>
static inline V __shfl_xor_sync(unsigned mask, V v, int lanes) {
  fk::full(mask);
  V out;
  fk::collective(fk::XOR, &v, sizeof v, &out, sizeof out, lanes);
  return out;
}

static inline uint32_t shared_address(const void* p) { return fk::shared_offset(p); }
static inline void ldm4(uint32_t* r, uint32_t at) { fk::collective(fk::LDM, &at, 4, r, 16, 0); }
static inline void ldm4t(uint32_t* r, uint32_t at) { fk::collective(fk::LDMT, &at, 4, r, 16, 0); }
static inline void mma(float* c, const uint32_t* a, const uint32_t* b) {
  uint32_t in[10];
  memcpy(in, a, 16);
  memcpy(in + 4, b, 8);
  memcpy(in + 6, c, 16);
  fk::collective(fk::MMA, in, 40, c, 16, 0);
}
static inline void mma(int32_t* c, const uint32_t* a, const uint32_t* b) {
  uint32_t in[10];
  memcpy(in, a, 16);
  memcpy(in + 4, b, 8);
  memcpy(in + 6, c, 16);
  fk::collective(fk::MMA8, in, 40, c, 16, 0);
}
static inline void copy16(uint32_t dst, const void* src, int bytes) { fk::copy_async(dst, src, bytes); }
static inline void copy_commit() { fk::copy_commit(); }
template <int n>
static inline void copy_wait() {
  fk::copy_wait(n);
}
