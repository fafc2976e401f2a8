// Rows of bf16, and words: two neighbouring bf16 of a row as 32 bits, the lower half first. A level
// with PB_DOT multiplies words with words, acc + lo * lo + hi * hi in f32: with AVX-512 BF16 in one
// instruction, elsewhere in portable vectors for tests. Levels without it widen rows of bf16 when
// they copy them.
#ifndef PB_DOT
#define PB_DOT 0
#endif

typedef uint32_t vu_mem2 __attribute__((vector_size(4 * VW), aligned(2), may_alias));

VI uint16_t narrow_bf16(float v) { // nearest, ties to even
    uint32_t bits;
    memcpy(&bits, &v, 4);
    if (v != v) return (uint16_t)(bits >> 16 | 0x40);
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

VI float widen_bf16(uint16_t h) {
    const uint32_t bits = (uint32_t)h << 16;
    float v;
    memcpy(&v, &bits, 4);
    return v;
}

// vload_words loads VW words; vload_words_n the words of n < 2 VW values, the rest is 0.
VI vf vload_words(const uint16_t* p) { return (vf) * (const vu_mem2*)p; }

#if PB_ISA == 3
VI vf vload_words_n(const uint16_t* p, int64_t n) {
    return _mm512_castsi512_ps(_mm512_maskz_loadu_epi16((__mmask32)((1u << n) - 1), p));
}
VI vf vload_bf16_n(const uint16_t* p, int64_t n) {
    __m256i h = _mm256_maskz_loadu_epi16((__mmask16)((1u << n) - 1), p);
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(h), 16));
}
#else
VI vf vload_words_n(const uint16_t* p, int64_t n) {
    vf v = {0};
    memcpy(&v, p, (size_t)n * 2);
    return v;
}
VI vf vload_bf16_n(const uint16_t* p, int64_t n) {
    uint16_t last[VW] = {0};
    memcpy(last, p, (size_t)n * 2);
    return vload_bf16(last);
}
#endif

// vnarrow rounds to the nearest bf16, ties to even; the instruction takes subnormal values for 0.
#if PB_ISA == 3 && PB_DOT
VI vh vnarrow(vf v) { return (vh)_mm512_cvtneps_pbh(v); }
#else
VI vh vnarrow(vf v) {
    const vu bits = (vu)v, nan = (vu)(v != v);
    const vu near = bits + 0x7fff + (bits >> 16 & 1);
    return __builtin_convertvector(((near & ~nan) | ((bits | 0x400000) & nan)) >> 16, vh);
}
#endif

VI void vstore_bf16(uint16_t* p, vf v) { *(vh_mem*)p = vnarrow(v); }
VI void vstore_bf16_n(uint16_t* p, vf v, int64_t n) {
    const vh h = vnarrow(v);
    memcpy(p, &h, (size_t)n * 2);
}

// vstore_words stores the 2 VW values lo, hi as VW words, vwords returns them.
#if PB_ISA == 3 && PB_DOT
VI vf vwords(vf lo, vf hi) { return (vf)_mm512_cvtne2ps_pbh(hi, lo); }
VI void vstore_words(float* p, vf lo, vf hi) { vstore(p, vwords(lo, hi)); }
#else
VI void vstore_words(float* p, vf lo, vf hi) {
    vstore_bf16((uint16_t*)p, lo);
    vstore_bf16((uint16_t*)p + VW, hi);
}
VI vf vwords(vf lo, vf hi) {
    float w[VW];
    vstore_words(w, lo, hi);
    return vload(w);
}
#endif

// vset_word repeats a word; a float operation might change its bits.
VI vf vset_word(const float* p) {
    uint32_t w;
    memcpy(&w, p, 4);
    return (vf)(w + (vu){0});
}

// vdot adds the products of the words of a and b to acc, like vadd_mul.
VI vf vdot(vf acc, vf a, vf b) {
#if PB_DOT && PB_ISA == 3
    __asm__("vdpbf16ps %2, %1, %0" : "+v"(acc) : "v"(a), "v"(b));
    return acc;
#else
    const vu x = (vu)a, y = (vu)b;
    acc = vfma((vf)(x << 16), (vf)(y << 16), acc);
    return vfma((vf)(x & 0xffff0000u), (vf)(y & 0xffff0000u), acc);
#endif
}

// load_act and store_act read and write n lanes (VW, or fewer at the end of a row) from element i
// of a row of activations of type T, a constant.
VI vf load_act(const int T, const void* p, int64_t i, int64_t n) {
    if (T == PB_F32) return n == VW ? vload((const float*)p + i) : vload_n((const float*)p + i, n);
    const uint16_t* h = (const uint16_t*)p + i;
    return n == VW ? vload_bf16(h) : vload_bf16_n(h, n);
}
VI void store_act(const int T, void* p, int64_t i, vf v, int64_t n) {
    if (T == PB_F32 && n == VW) {
        vstore((float*)p + i, v);
    } else if (T == PB_F32) {
        vstore_n((float*)p + i, v, n);
    } else if (n == VW) {
        vstore_bf16((uint16_t*)p + i, v);
    } else {
        vstore_bf16_n((uint16_t*)p + i, v, n);
    }
}
VI float act_at(const int T, const void* p, int64_t i) {
    return T == PB_F32 ? ((const float*)p)[i] : widen_bf16(((const uint16_t*)p)[i]);
}
VI int64_t act_size(int T) { return T == PB_F32 ? 4 : 2; }
