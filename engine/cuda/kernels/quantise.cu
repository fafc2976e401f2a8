// Quantise, Dequantise (a warp a row) and the rounding of activations for int8 products. The arithmetic is f32 with correct rounding, so that the bits are those of every other backend: nothing here
// may use fast division or a fused multiply-add.
#include "device.cuh"

// e4m3_code rounds to the nearest E4M3 number, ties to even; what is too large becomes NaN.
DEV u8 e4m3_code(float x) {
  u32 bits = __float_as_uint(x), sign = bits >> 24 & 0x80;
  int e = max((int)(bits >> 23 & 0xff) - 127, -6);
  // 2^(3-e) leaves the digits to keep before the point; the product is exact, and its implicit bit carries into the exponent by itself.
  int q = e > 16 ? 0x7f : __float2int_rn(__uint_as_float(bits & 0x7fffffffu) * __uint_as_float((u32)(130 - e) << 23));
  int code = e > 16 ? 0x7f : ((e + 6) << 3) + q;
  return (u8)(sign | (u32)min(code, 0x7f));
}

template <class T>
DEV void quantise(const pb_quantise& a) {
  int lane = threadIdx.x & 31;
  int warp = (int)(first_item() >> 5), warps = (int)(item_step() >> 5);
  for (int row = warp; row < a.r.rows; row += warps) {
    place p = locate(a.r, row);
    const T* x = row_of<T>(a.x, p);
    u32 top = 0;  // magnitudes order like their bits, and NaN is above all of them
    for (int c = lane; c < a.r.cols; c += 32) top = max(top, __float_as_uint(widen(x[c])) & 0x7fffffffu);
    for (int m = 16; m > 0; m >>= 1) top = max(top, __shfl_xor_sync(~0u, top, m));
    float s = __fdiv_rn(__uint_as_float(top), 448.f);
    int zero = !(s >= 0x1p-126f && s <= 0x1.fffffep127f);
    if (zero) s = s < 0x1p-126f ? 0 : __uint_as_float(0x7fc00000u);
    u8* q = row_of<u8>(a.q, p);
    for (int c = lane; c < a.r.cols; c += 32) q[c] = zero ? (u8)0 : e4m3_code(__fdiv_rn(widen(x[c]), s));
    if (lane == 0) *row_of<float>(a.scale, p) = s;
  }
}

template <class T>
DEV void dequantise(const pb_quantise& a) {
  int lane = threadIdx.x & 31;
  int warp = (int)(first_item() >> 5), warps = (int)(item_step() >> 5);
  for (int row = warp; row < a.r.rows; row += warps) {
    place p = locate(a.r, row);
    float s = *row_of<float>(a.scale, p);
    const u8* q = row_of<u8>(a.q, p);
    T* y = row_of<T>(a.x, p);
    for (int c = lane; c < a.r.cols; c += 32) put(y + c, __fmul_rn(e4m3_float(q[c]), s));
  }
}

KERNEL(256) pb_quantise_bf16(ARGS(pb_quantise) a) { quantise<bf16>(a); }
KERNEL(256) pb_quantise_f32(ARGS(pb_quantise) a) { quantise<float>(a); }
KERNEL(256) pb_dequantise_bf16(ARGS(pb_quantise) a) { dequantise<bf16>(a); }
KERNEL(256) pb_dequantise_f32(ARGS(pb_quantise) a) { dequantise<float>(a); }

// Rows of x in 8 bits (ref.QuantiseRow), a block a row. A rotation needs its whole group, so the row passes through shared memory in parts of whole
// groups, twice: for the largest magnitude and for the numbers.
#define PART PB_MAX_GROUP

DEV float narrowed(float v, bf16) { return widen(__float2bfloat16_rn(v)); }
DEV float narrowed(float v, float) { return v; }

// fetch brings n elements of a row into s, rotated.
template <class T>
DEV void fetch(float* s, const T* x, int n, int group) {
  __syncthreads();
  for (int i = threadIdx.x; i < n; i += blockDim.x) s[i] = widen(x[i]);
  for (int step = 1; step < group; step *= 4) {
    __syncthreads();
    for (int i = threadIdx.x; i < n / 4; i += blockDim.x) {
      float* p = s + i / step * 4 * step + i % step;
      float a = p[0], b = p[step], c = p[2 * step], d = p[3 * step], sum = __fadd_rn(__fadd_rn(a, b), __fadd_rn(c, d));
      p[0] = __fsub_rn(sum, 2 * d);
      p[step] = __fsub_rn(sum, 2 * c);
      p[2 * step] = __fsub_rn(sum, 2 * b);
      p[3 * step] = __fsub_rn(sum, 2 * a);
    }
  }
  __syncthreads();
  if (group) {
    float norm = __fdiv_rn(1.f, __fsqrt_rn((float)group));  // a power of 2
    for (int i = threadIdx.x; i < n; i += blockDim.x) s[i] = narrowed(__fmul_rn(s[i], norm), T());
  }
}

template <class T>
DEV void round8(const pb_round& a) {
  float* s = (float*)pool;
  u32* tops = (u32*)(s + PART);
  for (int row = blockIdx.x; row < a.batch * a.rows; row += gridDim.x) {
    const T* x = (const T*)a.x + row / a.rows * a.bs + row % a.rows * a.ls;
    signed char* q = (signed char*)a.q + (pb_i64)row * a.ld;
    u32 top = 0;  // magnitudes order like their bits, and NaN is above all of them
    for (int from = 0; from < a.k; from += PART) {
      int n = min(PART, a.k - from);
      fetch(s, x + from, n, a.group);
      for (int i = threadIdx.x; i < n; i += blockDim.x) top = max(top, __float_as_uint(s[i]) & 0x7fffffffu);
    }
    for (int m = 16; m > 0; m >>= 1) top = max(top, __shfl_xor_sync(~0u, top, m));
    if ((threadIdx.x & 31) == 0) tops[threadIdx.x >> 5] = top;
    __syncthreads();
    for (int i = 0; i < (int)(blockDim.x >> 5); i++) top = max(top, tops[i]);
    int none = top >= 0x7f800000u;
    float scale = fmaxf(__fdiv_rn(__uint_as_float(none ? 0 : top), 127.f), 1e-30f), by = narrowed(scale, T());
    for (int from = 0; from < a.k; from += PART) {
      int n = min(PART, a.k - from);
      fetch(s, x + from, n, a.group);
      for (int i = threadIdx.x; i < n; i += blockDim.x)
        q[from + i] = none ? 0 : (signed char)max(-128, min(127, __float2int_rn(narrowed(__fdiv_rn(s[i], by), T()))));
    }
    for (int i = a.k + threadIdx.x; i < a.ld; i += blockDim.x) q[i] = 0;
    if (threadIdx.x == 0) ((float*)a.scales)[row] = none ? __uint_as_float(0x7fc00000u) : scale;
    __syncthreads();
  }
}

KERNEL(256) pb_round_bf16(ARGS(pb_round) a) { round8<bf16>(a); }
KERNEL(256) pb_round_f32(ARGS(pb_round) a) { round8<float>(a); }
