// Quantise and Dequantise: a warp a row. The arithmetic is f32 with correct rounding, so that the bits are those of every other backend: nothing here
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
