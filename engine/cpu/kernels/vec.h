// Vectors of VW floats: with bf16.h the only place that knows instruction sets. A level file
// defines VW (lanes), MR (rows of the register tile) and PB_ISA (0 portable GCC vectors, 2
// AVX2+FMA+F16C, 3 AVX-512) and then includes the kernels, which are the same text at every level.
#include <stdint.h>
#include <string.h>
#include <math.h>
#if PB_ISA
#include <immintrin.h>
#endif
#include "kernels.h"

#define NR (2 * VW)
#define VI static inline __attribute__((always_inline))

typedef float vf __attribute__((vector_size(4 * VW)));
typedef int32_t vi __attribute__((vector_size(4 * VW)));
typedef uint32_t vu __attribute__((vector_size(4 * VW)));
typedef uint16_t vh __attribute__((vector_size(2 * VW)));
typedef float vf_mem __attribute__((vector_size(4 * VW), aligned(4), may_alias));
typedef uint32_t vu_mem __attribute__((vector_size(4 * VW), aligned(4), may_alias));
typedef uint16_t vh_mem __attribute__((vector_size(2 * VW), aligned(2), may_alias));

#if VW == 16
#define LANES                                                                                      \
    { 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15 }
#define SWAP_PAIRS(v)                                                                              \
    __builtin_shufflevector(v, v, 1, 0, 3, 2, 5, 4, 7, 6, 9, 8, 11, 10, 13, 12, 15, 14)
#define TWICE_LOW(v) __builtin_shufflevector(v, v, 0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7)
#define TWICE_HIGH(v)                                                                              \
    __builtin_shufflevector(v, v, 8, 8, 9, 9, 10, 10, 11, 11, 12, 12, 13, 13, 14, 14, 15, 15)
#elif VW == 8
#define LANES                                                                                      \
    { 0, 1, 2, 3, 4, 5, 6, 7 }
#define SWAP_PAIRS(v) __builtin_shufflevector(v, v, 1, 0, 3, 2, 5, 4, 7, 6)
#define TWICE_LOW(v) __builtin_shufflevector(v, v, 0, 0, 1, 1, 2, 2, 3, 3)
#define TWICE_HIGH(v) __builtin_shufflevector(v, v, 4, 4, 5, 5, 6, 6, 7, 7)
#else
#define LANES                                                                                      \
    { 0, 1, 2, 3 }
#define SWAP_PAIRS(v) __builtin_shufflevector(v, v, 1, 0, 3, 2)
#define TWICE_LOW(v) __builtin_shufflevector(v, v, 0, 0, 1, 1)
#define TWICE_HIGH(v) __builtin_shufflevector(v, v, 2, 2, 3, 3)
#endif

VI int64_t imin(int64_t a, int64_t b) { return a < b ? a : b; }
VI int64_t imax(int64_t a, int64_t b) { return a > b ? a : b; }

VI vf vload(const float* p) { return *(const vf_mem*)p; }
VI void vstore(float* p, vf v) { *(vf_mem*)p = v; }
VI vf vzero(void) { return (vf){0}; }
VI vi vlanes(void) { return (vi)LANES; }

#if PB_ISA == 3
VI vf vset(float x) { return _mm512_set1_ps(x); }
VI vf vfma(vf a, vf b, vf c) { return _mm512_fmadd_ps(a, b, c); }
// vadd_mul is acc + a * b in place: left to itself the compiler renames accumulators and spills
// them.
VI vf vadd_mul(vf acc, vf a, vf b) {
    __asm__("vfmadd231ps %2, %1, %0" : "+v"(acc) : "v"(a), "v"(b));
    return acc;
}
VI vf vmax(vf a, vf b) { return _mm512_max_ps(a, b); }
VI vf vmin(vf a, vf b) { return _mm512_min_ps(a, b); }
VI vf vload_n(const float* p, int64_t n) {
    return _mm512_maskz_loadu_ps((__mmask16)((1u << n) - 1), p);
}
VI void vstore_n(float* p, vf v, int64_t n) {
    _mm512_mask_storeu_ps(p, (__mmask16)((1u << n) - 1), v);
}
VI vf vload_bf16(const uint16_t* p) {
    __m512i w = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i*)p));
    return _mm512_castsi512_ps(_mm512_slli_epi32(w, 16));
}
VI vf vload_f16(const uint16_t* p) {
    return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i*)p));
}
VI float vsum(vf v) { return _mm512_reduce_add_ps(v); }
VI float vtop(vf v) { return _mm512_reduce_max_ps(v); }
// keep returns a where a vector comparison is true and b elsewhere.
VI vf vkeep_ge(vf x, vf limit, vf a, vf b) {
    return _mm512_mask_blend_ps(_mm512_cmp_ps_mask(x, limit, _CMP_LT_OQ), a, b);
}
VI vf vround(vf x) {
    return _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
VI vf vpow2(vf p, vf n) { return _mm512_scalef_ps(p, n); } // p * 2^n for whole n
#elif PB_ISA == 2
VI vf vset(float x) { return _mm256_set1_ps(x); }
VI vf vfma(vf a, vf b, vf c) { return _mm256_fmadd_ps(a, b, c); }
VI vf vadd_mul(vf acc, vf a, vf b) {
    __asm__("vfmadd231ps %2, %1, %0" : "+x"(acc) : "x"(a), "x"(b));
    return acc;
}
VI vf vmax(vf a, vf b) { return _mm256_max_ps(a, b); }
VI vf vmin(vf a, vf b) { return _mm256_min_ps(a, b); }
VI __m256i vfirst(int64_t n) { return (__m256i)(vlanes() < (vi)_mm256_set1_epi32((int)n)); }
VI vf vload_n(const float* p, int64_t n) { return _mm256_maskload_ps(p, vfirst(n)); }
VI void vstore_n(float* p, vf v, int64_t n) { _mm256_maskstore_ps(p, vfirst(n), v); }
VI vf vload_bf16(const uint16_t* p) {
    __m256i w = _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i*)p));
    return _mm256_castsi256_ps(_mm256_slli_epi32(w, 16));
}
VI vf vload_f16(const uint16_t* p) { return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)p)); }
#else
VI vf vset(float x) { return x - (vf){0}; }
VI vf vfma(vf a, vf b, vf c) { return a * b + c; }
VI vf vselect(vi m, vf a, vf b) { return (vf)(((vi)a & m) | ((vi)b & ~m)); }
VI vf vadd_mul(vf acc, vf a, vf b) { return a * b + acc; }
// Like the x86 instructions these return b where one of the two is NaN.
VI vf vmax(vf a, vf b) { return vselect(a > b, a, b); }
VI vf vmin(vf a, vf b) { return vselect(a < b, a, b); }
VI vf vload_n(const float* p, int64_t n) {
    vf v = {0};
    memcpy(&v, p, (size_t)n * 4);
    return v;
}
VI void vstore_n(float* p, vf v, int64_t n) { memcpy(p, &v, (size_t)n * 4); }
VI vf vload_bf16(const uint16_t* p) {
    return (vf)(__builtin_convertvector(*(const vh_mem*)p, vu) << 16);
}
VI vf vload_f16(const uint16_t* p) {
    vu h = __builtin_convertvector(*(const vh_mem*)p, vu);
    // 2^112 moves the exponent bias from 15 to 127 and makes subnormals normal.
    vf small = (vf)((h & 0x7fff) << 13) * 0x1p112f;
    vu top = (vu)((h & 0x7c00) == 0x7c00) & 0x7f800000;
    return (vf)((vu)small | top | (h & 0x8000) << 16);
}
#endif

#if PB_ISA != 3
VI float vsum(vf v) {
    float s = 0;
    for (int i = 0; i < VW; i++)
        s += v[i];
    return s;
}
VI float vtop(vf v) {
    float m = v[0];
    for (int i = 1; i < VW; i++)
        m = v[i] > m ? v[i] : m;
    return m;
}
VI vf vkeep_ge(vf x, vf limit, vf a, vf b) {
    vi m = x < limit;
    return (vf)(((vi)b & m) | ((vi)a & ~m));
}
// vround rounds |x| < 2^22 to the nearest whole number: the sum has no bits left for a fraction.
VI vf vround(vf x) { return (x + 12582912.0f) - 12582912.0f; }
// p * 2^n for whole n in [-126, 127]; a NaN in p stays one. The low bits of n + 1.5 * 2^23 are n.
VI vf vpow2(vf p, vf n) {
    vi e = ((vi)(n + 12582912.0f) << 23) + 0x3f800000;
    return p * (vf)e;
}
#endif

// vexp computes e^x with a relative error below 2e-7 for x in [-87, 88]; below it is 0, above it
// stays at e^88. x = n ln 2 + r with whole n and |r| <= ln 2 / 2 (ln 2 in two parts so that r is
// exact); the polynomial interpolates e^r at the seven Chebyshev nodes of that range, relative
// error 3e-9.
VI vf vexp(vf x) {
    vf c = vmin(vset(88.0f), vmax(vset(-87.0f), x));
    vf n = vround(c * 1.44269504f);
    vf r = vfma(n, vset(-0.693359375f), c);
    r = vfma(n, vset(2.12194440e-4f), r);
    vf p = vset(0.00139411406f);
    p = vfma(p, r, vset(0.00837515212f));
    p = vfma(p, r, vset(0.0416663525f));
    p = vfma(p, r, vset(0.166664152f));
    p = vfma(p, r, vset(0.500000005f));
    p = vfma(p, r, vset(1.00000004f));
    p = vfma(p, r, vset(1.0f));
    return vkeep_ge(x, vset(-87.0f), vpow2(p, n), vzero());
}

// vexp2 computes 2^x for x <= 0 with a relative error below 2e-7, for the softmax, where its cost
// shows. Below -126 it stays at 2^-126, or is 0 where the constant hide is set. Six Chebyshev
// nodes, error 1e-7.
VI vf vexp2(vf x, const int hide) {
    vf c = vmax(vset(-126.0f), x);
    vf n = vround(c);
    vf r = c - n;
    vf p = vset(0.0013390868f);
    p = vfma(p, r, vset(0.00967603656f));
    p = vfma(p, r, vset(0.0555035711f));
    p = vfma(p, r, vset(0.240221074f));
    p = vfma(p, r, vset(0.693147188f));
    p = vfma(p, r, vset(1.00000008f));
    p = vpow2(p, n);
    return hide ? vkeep_ge(x, vset(-126.0f), p, vzero()) : p;
}

// vexp2_short is vexp2 for results that become bf16: four Chebyshev nodes, relative error 1e-04, a
// twentieth of a rounding to bf16.
VI vf vexp2_short(vf x, const int hide) {
    vf c = vmax(vset(-126.0f), x);
    vf n = vround(c);
    vf r = c - n;
    vf p = vset(0.0558382829f);
    p = vfma(p, r, vset(0.242639479f));
    p = vfma(p, r, vset(0.693136734f));
    p = vfma(p, r, vset(0.999924557f));
    p = vpow2(p, n);
    return hide ? vkeep_ge(x, vset(-126.0f), p, vzero()) : p;
}
