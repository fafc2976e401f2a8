// What kernels that were translated from PTX call: memory, with alignment and bounds as hardware has them and races found; arithmetic as the PTX manual says
// it, where approximate within what it allows: a result is off by up to 2 units in the last place, always by the same for one argument, and products that
// the driver's compiler may join with a sum are or are not, as FAKEGPU_SEED says for each place.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "fibre.h"
#include "race.h"

namespace ptx {

inline float f32(uint32_t u) {
  float f;
  memcpy(&f, &u, 4);
  return f;
}
inline uint32_t bits(float f) {
  uint32_t u;
  memcpy(&u, &f, 4);
  return u;
}
inline double f64(uint64_t u) {
  double f;
  memcpy(&f, &u, 8);
  return f;
}
inline uint64_t bits(double f) {
  uint64_t u;
  memcpy(&u, &f, 8);
  return u;
}

[[noreturn]] inline void bad(const char* what, uint64_t at, int bytes) {
  char text[160];
  snprintf(text, sizeof text, "%s at %llx of %d bytes", what, (unsigned long long)at, bytes);
  fk::stop(text);
}

// A vector access is one of bytes at address at, of which part i is meant.
inline const char* global(uint64_t at, int bytes, bool writes) {
  if (at % bytes) bad("misaligned access of global memory", at, bytes);
  race::global(at, bytes, writes);
  return (const char*)at;
}
inline unsigned char* shared(uint64_t at, int bytes, bool writes) {
  if (at % bytes) bad("misaligned access of shared memory", at, bytes);
  if (at + bytes > fk::block.shared_bytes) bad("access beyond shared memory", at, bytes);
  writes ? race::write((uint32_t)at, bytes) : race::read((uint32_t)at, bytes);
  return fk::block.shared + at;
}
template <class T, int n>
inline void load_global(uint64_t at, T* to) {
  memcpy(to, global(at, sizeof(T) * n, false), sizeof(T) * n);
}
template <class T, int n>
inline void load_shared(uint64_t at, T* to) {
  memcpy(to, shared(at, sizeof(T) * n, false), sizeof(T) * n);
}
template <class T, int n>
inline void store_global(uint64_t at, const T* from) {
  memcpy((char*)global(at, sizeof(T) * n, true), from, sizeof(T) * n);
}
template <class T, int n>
inline void store_shared(uint64_t at, const T* from) {
  memcpy(shared(at, sizeof(T) * n, true), from, sizeof(T) * n);
}
template <class T, int n, size_t size>
inline void load_param(const unsigned char (&param)[size], uint64_t at, T* to) {
  uint64_t off = at - (uint64_t)param;
  if (off + sizeof(T) * n > size) bad("ld.param beyond the parameter", off, sizeof(T) * n);
  if (off % (sizeof(T) * n)) bad("misaligned ld.param", off, sizeof(T) * n);
  memcpy(to, param + off, sizeof(T) * n);
}

inline void copy(uint64_t dst, uint64_t src, int size, uint32_t bytes) {
  if (size != 16 || bytes > 16) bad("cp.async of another size", dst, size);
  if (src % 16 || dst % 16) bad("misaligned cp.async", src, 16);
  if (dst + 16 > fk::block.shared_bytes) bad("cp.async beyond shared memory", dst, 16);
  if (bytes) race::global(src, bytes, false);
  race::issued((uint32_t)dst);
  fk::copy_async((uint32_t)dst, (const void*)src, (int)bytes);
}
inline void commit() {
  race::threads[fk::self()->thread.x].group++;
  fk::copy_commit();
}
inline void wait(int left) {
  fk::copy_wait(left);
  race::landed(left);
}
inline void barrier() {
  int t = fk::self()->thread.x;
  fk::barrier();
  race::threads[t].block++;
}
inline void barrier_of_warp() {
  int t = fk::self()->thread.x;
  fk::collective(fk::SYNC, nullptr, 0, nullptr, 0, 0);
  race::threads[t].warp++;
}
inline void matrices(fk::op kind, uint32_t at, uint32_t* out) {
  if (at % 16 || at + 16 > fk::block.shared_bytes) bad("ldmatrix outside of shared memory or not aligned", at, 16);
  race::read(at, 16);
  fk::collective(kind, &at, 4, out, 16, 0);
}
inline uint32_t shuffle(uint32_t v, uint32_t lanes, uint32_t clamp, uint32_t mask) {
  if (clamp != 31 || mask != ~0u) bad("shfl with another clamp or mask", mask, (int)clamp);
  uint32_t out;
  fk::collective(fk::XOR, &v, 4, &out, 4, (int)lanes);
  return out;
}

inline uint32_t mixed(uint32_t v) {
  v = (v ^ v >> 16) * 0x7feb352du;
  v = (v ^ v >> 15) * 0x846ca68bu;
  return v ^ v >> 16;
}
inline uint32_t seed() {
  static const uint32_t s = getenv("FAKEGPU_SEED") ? (uint32_t)strtoul(getenv("FAKEGPU_SEED"), nullptr, 0) : 1;
  return s;
}
// joins reports whether the driver's compiler makes one operation of a product and a sum at a place.
inline bool joins(uint32_t place) { return mixed(place + seed() * 0x9e3779b9u) & 1; }

// about is what a unit gives for y, the exact result of x.
inline float about(float y, float x) {
  if (y == 0 || !(std::fabs(y) < INFINITY) || std::fabs(y) < 0x1p-125f) return y;
  return f32(bits(y) + mixed(bits(x) + seed()) % 5 - 2);
}
inline float ex2(float x) { return x == std::rint(x) ? std::exp2(x) : about(std::exp2(x), x); }
inline float ex2_ftz(float x) {
  float y = ex2(x);
  return std::fabs(y) < 0x1p-126f ? 0.f : y;
}
inline float rsqrt(float x) { return about((float)(1 / std::sqrt((double)x)), x); }
inline float quotient(float a, float b) {
  if (std::fabs(b) > 0x1p126f && b == b) return a * 0.f;
  return b == 1 ? a : about(a / b, f32(bits(a) ^ mixed(bits(b))));
}

inline uint16_t bf16(float f) {
  uint32_t u = bits(f);
  return f != f ? 0x7fff : (uint16_t)((u + 0x7fff + (u >> 16 & 1)) >> 16);
}
inline float half(uint16_t h) {
  int e = h >> 10 & 31;
  float m = (float)(h & 1023), s = h >> 15 ? -1.f : 1.f;
  if (e == 31) return m != 0 ? f32(0x7fffffff) : s * INFINITY;
  return e ? s * std::ldexp(1 + m / 1024, e - 15) : s * std::ldexp(m / 1024, -14);
}
inline float saturate(float x) { return x > 0 ? (x < 1 ? x : 1) : 0; }
inline int32_t nearest(float x) {
  double d = std::nearbyint((double)x);
  return x != x ? 0 : d >= 2147483647.0 ? 2147483647 : d <= -2147483648.0 ? INT32_MIN : (int32_t)d;
}
template <class T>
inline T most(T a, T b) {
  return a != a ? b : b != b ? a : a > b ? a : b;
}
template <class T>
inline T least(T a, T b) {
  return a != a ? b : b != b ? a : a < b ? a : b;
}
inline float fma_down(float a, float b, float c) {
  double d = (double)a * b + c;
  float f = (float)d;
  return (double)f > d ? std::nextafterf(f, -INFINITY) : f;
}
template <class T>
inline T not_zero(T x) {
  if (!x) bad("division by 0", 0, 0);
  return x;
}
template <class T>
inline T left(T x, uint32_t n) {
  return n >= 8 * sizeof(T) ? 0 : (T)(x << n);
}
template <class T>
inline T right(T x, uint32_t n) {
  const uint32_t last = 8 * sizeof(T) - 1;
  return n <= last ? (T)(x >> n) : (T)-1 < 0 ? (T)(x >> last) : 0;
}
inline uint32_t insert(uint32_t a, uint32_t b, uint32_t at, uint32_t count) {
  at &= 255;
  count &= 255;
  uint32_t mask = count >= 32 ? ~0u : (1u << count) - 1;
  if (at > 31) return b;
  mask <<= at;
  return (b & ~mask) | (a << at & mask);
}

}  // namespace ptx
