// Weights in blocks of GGUF files that stay as they are: a panel holds the bytes of its NR rows, byte
// i of all columns side by side, and is widened to words of bf16 piece by piece before it is
// multiplied, each lane a column. The formulas are those of engine/gguf, with the same roundings.

enum { PB_Q8_0 = 1, PB_Q4_0, PB_Q4_K, PB_Q5_K, PB_Q6_K };

typedef uint8_t vb8 __attribute__((vector_size(VW), aligned(1), may_alias));

// block_size returns the elements of a block, block_bytes its bytes.
static int64_t block_size(int kind) { return kind <= PB_Q4_0 ? 32 : 256; }
static int64_t block_bytes(int kind) {
    static const int64_t bytes[] = {0, 34, 18, 144, 176, 210};
    return bytes[kind];
}

// vbyte loads byte i of VW columns.
VI vu vbyte(const uint8_t* s, int64_t i) {
#if PB_ISA == 3
    return (vu)_mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i*)(s + i * NR)));
#elif PB_ISA == 2
    return (vu)_mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i*)(s + i * NR)));
#else
    return __builtin_convertvector(*(const vb8*)(s + i * NR), vu);
#endif
}
VI vf vofu(vu v) { return __builtin_convertvector((vi)v, vf); }
VI vf vsigned(vu v) { return __builtin_convertvector((vi)(v << 24) >> 24, vf); }

// vhalf16 reads the f16 at byte i.
VI vf vhalf16(const uint8_t* s, int64_t i) {
    const vu h = vbyte(s, i) | vbyte(s, i + 1) << 8;
    const vf small = (vf)((h & 0x7fff) << 13) * 0x1p112f; // as vload_f16
    const vu top = (vu)((h & 0x7c00) == 0x7c00) & 0x7f800000;
    return (vf)((vu)small | top | (h & 0x8000) << 16);
}

// vstore_pair stores two neighbouring elements of VW columns as words.
VI void vstore_pair(uint32_t* to, vf lo, vf hi) {
#if PB_ISA == 3 && PB_DOT
    static const uint16_t order[32] = {0, 16, 1, 17, 2,  18, 3,  19, 4,  20, 5,  21, 6,  22, 7,  23,
                                       8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31};
    const __m512i both = (__m512i)_mm512_cvtne2ps_pbh(hi, lo);
    _mm512_storeu_si512(to, _mm512_permutexvar_epi16(_mm512_loadu_si512(order), both));
#else
    const vu a = (vu)lo, b = (vu)hi;
    const vu low = (a + 0x7fff + (a >> 16 & 1)) >> 16;
    const vu high = (b + 0x7fff + (b >> 16 & 1)) & 0xffff0000u;
    *(vu_mem*)to = low | high;
#endif
}

// pair_scaled stores q * f - m of two elements.
VI void pair_scaled(uint32_t* to, vu q0, vu q1, vf f, vf m) {
    vstore_pair(to, f * vofu(q0) - m, f * vofu(q1) - m);
}

VI void widen_q8_0(const uint8_t* s, uint32_t* to) {
    const vf d = vhalf16(s, 0);
    for (int64_t i = 0; i < 32; i += 2, to += NR)
        vstore_pair(to, vsigned(vbyte(s, 2 + i)) * d, vsigned(vbyte(s, 3 + i)) * d);
}

VI void widen_q4_0(const uint8_t* s, uint32_t* to) {
    const vf d = vhalf16(s, 0), eight = vset(8);
    for (int64_t i = 0; i < 16; i += 2, to += NR) {
        const vu a = vbyte(s, 2 + i), b = vbyte(s, 3 + i);
        vstore_pair(to, (vofu(a & 15) - eight) * d, (vofu(b & 15) - eight) * d);
        vstore_pair(to + 8 * NR, (vofu(a >> 4) - eight) * d, (vofu(b >> 4) - eight) * d);
    }
}

// scale_min unpacks scale and minimum of group g of Q4_K and Q5_K.
VI void scale_min(const uint8_t* s, int64_t g, vf d, vf dmin, vf* scale, vf* low) {
    s += 4 * NR;
    if (g < 4) {
        *scale = d * vofu(vbyte(s, g) & 63);
        *low = dmin * vofu(vbyte(s, g + 4) & 63);
        return;
    }
    const vu both = vbyte(s, g + 4);
    *scale = d * vofu((both & 15) | vbyte(s, g - 4) >> 6 << 4);
    *low = dmin * vofu(both >> 4 | vbyte(s, g) >> 6 << 4);
}

VI void widen_q45_k(const int FIFTH, const uint8_t* s, uint32_t* to) {
    const vf d = vhalf16(s, 0), dmin = vhalf16(s, 2);
    const int64_t q = FIFTH ? 48 : 16;
    for (int64_t g = 0; g < 8; g += 2, to += 32 * NR) {
        vf scale, low, scale2, low2;
        scale_min(s, g, d, dmin, &scale, &low);
        scale_min(s, g + 1, d, dmin, &scale2, &low2);
        for (int64_t i = 0; i < 32; i += 2) {
            const vu a = vbyte(s, q + 16 * g + i), b = vbyte(s, q + 16 * g + i + 1);
            vu a0 = a & 15, b0 = b & 15, a1 = a >> 4, b1 = b >> 4;
            if (FIFTH) {
                const vu ah = vbyte(s, 16 + i) >> g, bh = vbyte(s, 17 + i) >> g;
                a0 |= (ah & 1) << 4, b0 |= (bh & 1) << 4;
                a1 |= (ah & 2) << 3, b1 |= (bh & 2) << 3;
            }
            pair_scaled(to + i / 2 * NR, a0, b0, scale, low);
            pair_scaled(to + (16 + i / 2) * NR, a1, b1, scale2, low2);
        }
    }
}

VI void pair_q6(uint32_t* to, vu a, vu b, vf f) {
    const vf mid = vset(32);
    vstore_pair(to, f * (vofu(a) - mid), f * (vofu(b) - mid));
}

VI void widen_q6_k(const uint8_t* s, uint32_t* to) {
    const vf d = vhalf16(s, 208);
    for (int64_t part = 0; part < 4; part++) { // 16 of 32 inputs of a half of 128
        const int64_t t = part / 2, from = part % 2 * 16;
        vf f[4];
        for (int j = 0; j < 4; j++)
            f[j] = d * vsigned(vbyte(s, 192 + 8 * t + part % 2 + 2 * j));
        for (int64_t i = from; i < from + 16; i += 2) {
            const vu a = vbyte(s, 64 * t + i), b = vbyte(s, 64 * t + i + 1);
            const vu c = vbyte(s, 64 * t + 32 + i), e = vbyte(s, 64 * t + 33 + i);
            const vu h = vbyte(s, 128 + 32 * t + i), k = vbyte(s, 129 + 32 * t + i);
            uint32_t* at = to + (64 * t + i / 2) * NR;
            pair_q6(at, (a & 15) | (h & 3) << 4, (b & 15) | (k & 3) << 4, f[0]);
            pair_q6(at + 16 * NR, (c & 15) | (h & 12) << 2, (e & 15) | (k & 12) << 2, f[1]);
            pair_q6(at + 32 * NR, a >> 4 | (h & 48), b >> 4 | (k & 48), f[2]);
            pair_q6(at + 48 * NR, c >> 4 | (h & 192) >> 2, e >> 4 | (k & 192) >> 2, f[3]);
        }
    }
}

#define WIDEN_ALL(CALL, ELEMENTS, BYTES)                                                           \
    for (int64_t i = 0; i < n; i++, from += BYTES * NR, to += ELEMENTS / 2 * NR) {                 \
        for (int64_t j = 0; j < NR; j += VW) {                                                     \
            const uint8_t* s = from + j;                                                           \
            uint32_t* out = to + j;                                                                \
            CALL;                                                                                  \
        }                                                                                          \
    }

// widen_blocks widens n blocks of all columns of a panel to words.
static void widen_blocks(int kind, const uint8_t* from, int64_t n, uint32_t* to) {
    switch (kind) {
    case PB_Q8_0:
        WIDEN_ALL(widen_q8_0(s, out), 32, 34);
        return;
    case PB_Q4_0:
        WIDEN_ALL(widen_q4_0(s, out), 32, 18);
        return;
    case PB_Q4_K:
        WIDEN_ALL(widen_q45_k(0, s, out), 256, 144);
        return;
    case PB_Q5_K:
        WIDEN_ALL(widen_q45_k(1, s, out), 256, 176);
        return;
    case PB_Q6_K:
        WIDEN_ALL(widen_q6_k(s, out), 256, 210);
    }
}

// pack_blocks writes one panel of rows of a->k bytes.
static void pack_blocks(const pb_pack* a, int64_t p) {
    enum { PIECE = 256 };
    const int64_t cols = imin(NR, a->n - p * NR);
    uint8_t* to = (uint8_t*)a->dst + p * a->k * NR;
    if (cols < NR) memset(to, 0, (size_t)(a->k * NR));
    for (int64_t i0 = 0; i0 < a->k; i0 += PIECE) {
        const int64_t i1 = imin(a->k, i0 + PIECE);
        for (int64_t j = 0; j < cols; j++) {
            const uint8_t* src = (const uint8_t*)a->src + (p * NR + j) * a->row;
            for (int64_t i = i0; i < i1; i++)
                to[i * NR + j] = src[i];
        }
    }
}
