// Weights in blocks of GGUF files that stay as they are: a panel holds the bytes of its NR rows side
// by side, and is widened to words of bf16 piece by piece. The formulas are those of engine/gguf, with
// the same roundings: products of factors and codes are exact in f32, so it does not matter whether
// the multiply-add behind them rounds once or twice.
//
// Of a block, the bytes of factors come first, byte i of all columns, then the next. Behind them lie
// the bytes of codes, 8 of a column at a time: those with even numbers, then those with odd ones. So a
// lane is one of a pair of neighbouring inputs, its word of 32 bits holds codes of four pairs, and two
// vectors of lanes rounded to bf16 are a vector of words, each a column.

enum { PB_Q8_0 = 1, PB_Q4_0, PB_Q4_K, PB_Q5_K, PB_Q6_K };

typedef uint8_t vb8 __attribute__((vector_size(VW), aligned(1), may_alias));

// block_form tells how a block is stored: elements and bytes, and where its factors lie; the rest is
// codes.
typedef struct {
    int64_t size, bytes, head, heads;
} block_form;
static block_form form_of(int kind) {
    static const block_form forms[] = {{0},           {32, 34, 0, 2},    {32, 18, 0, 2}, {256, 144, 0, 16},
                                       {256, 176, 0, 16}, {256, 210, 192, 18}};
    return forms[kind];
}

// vbyte loads factor byte i of VW columns.
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

// factors are those of VW columns, every one twice, for both inputs of a pair: a weight is
// scale * (code - centre) + low.
typedef struct {
    vf scale[2], low[2];
} factors;

VI void twice(vf v, vf* to) { to[0] = TWICE_LOW(v), to[1] = TWICE_HIGH(v); }

// sink takes words in the order of inputs: it stores them, or adds their products with a row of x.
typedef struct {
    uint32_t* to;
    const float* x;
    vf sum[2];
} sink;

// take widens four pairs of inputs of VW columns, the codes of which lie at bit AT of the bytes of c.
// The bits of a code below the exponent of 2^(23 - bit) make that number plus the code.
VI void take(const int DOT, const int AT, const int WIDTH, const int CENTRE, const int LOW, const vu* c,
             const factors* f, sink* o, const int half, int64_t pair) {
    _Pragma("GCC unroll 4") for (int i = 0; i < 4; i++) {
        const int bit = AT + 8 * (i % 2);
        const float one = (float)(1 << (23 - bit));
        vf v[2];
        _Pragma("GCC unroll 2") for (int j = 0; j < 2; j++) {
            const vu code = (i < 2 ? c[j] : c[j] >> 16) & (((1u << WIDTH) - 1) << bit);
            const vf q = (vf)(code | (vu)vset(one)) - vset(one + CENTRE);
            v[j] = LOW ? vfma(f->scale[j], q, f->low[j]) : f->scale[j] * q;
        }
        if (!DOT) {
            vstore_words((float*)(o->to + (pair + i) * NR + half * VW), v[0], v[1]);
        } else {
            o->sum[half] = vdot(o->sum[half], vset_word(o->x + pair + i), vwords(v[0], v[1]));
        }
    }
}

// codes loads unit t of 8 bytes of VW columns.
VI void codes(const uint8_t* s, int64_t t, const int half, vu* c) {
    const vu_mem* from = (const vu_mem*)(s + 8 * (t * NR + half * VW));
    c[0] = from[0], c[1] = from[1];
}

#define HALVES _Pragma("GCC unroll 2") for (int h = 0; h < 2; h++)
#define NIBBLES _Pragma("GCC unroll 2") for (int n = 0; n < 2; n++)

VI void widen_q8_0(const int DOT, const uint8_t* s, sink* o) {
    factors f[2];
    vu c[2];
    HALVES twice(vhalf16(s + h * VW, 0), f[h].scale);
    for (int64_t t = 0; t < 4; t++) {
        HALVES {
            codes(s + 2 * NR, t, h, c);
            c[0] ^= 0x80808080, c[1] ^= 0x80808080;
            take(DOT, 0, 8, 128, 0, c, &f[h], o, h, 4 * t);
        }
    }
}

VI void widen_q4_0(const int DOT, const uint8_t* s, sink* o) {
    factors f[2];
    vu c[2];
    HALVES twice(vhalf16(s + h * VW, 0), f[h].scale);
    NIBBLES {
        for (int64_t t = 0; t < 2; t++) {
            HALVES {
                codes(s + 2 * NR, t, h, c);
                take(DOT, 4 * n, 4, 8, 0, c, &f[h], o, h, 8 * n + 4 * t);
            }
        }
    }
}

// scale_min unpacks scale and minimum of group g of Q4_K and Q5_K.
VI void scale_min(const uint8_t* s, int64_t g, vf d, vf dmin, factors* f) {
    s += 4 * NR;
    vu scale, low;
    if (g < 4) {
        scale = vbyte(s, g) & 63, low = vbyte(s, g + 4) & 63;
    } else {
        const vu both = vbyte(s, g + 4);
        scale = (both & 15) | vbyte(s, g - 4) >> 6 << 4, low = both >> 4 | vbyte(s, g) >> 6 << 4;
    }
    twice(d * vofu(scale), f->scale);
    twice(-dmin * vofu(low), f->low);
}

VI void widen_q45_k(const int DOT, const int FIFTH, const uint8_t* s, sink* o) {
    vf d[2], dmin[2];
    factors f[2];
    vu c[2], high[2];
    HALVES d[h] = vhalf16(s + h * VW, 0), dmin[h] = vhalf16(s + h * VW, 2);
    const uint8_t *fifth = s + 16 * NR, *q = fifth + (FIFTH ? 32 * NR : 0);
    for (int64_t g = 0; g < 8; g += 2, q += 32 * NR) {
        NIBBLES {
            HALVES scale_min(s + h * VW, g + n, d[h], dmin[h], &f[h]);
            for (int64_t t = 0; t < 4; t++) {
                HALVES {
                    codes(q, t, h, c);
                    if (FIFTH) {
                        codes(fifth, t, h, high);
                        for (int j = 0; j < 2; j++)
                            c[j] = (c[j] >> 4 * n & 0x0f0f0f0f) | (high[j] >> (g + n) << 4 & 0x10101010);
                    }
                    take(DOT, FIFTH ? 0 : 4 * n, 4 + FIFTH, 0, 1, c, &f[h], o, h, 16 * (g + n) + 4 * t);
                }
            }
        }
    }
}

VI void widen_q6_k(const int DOT, const uint8_t* s, sink* o) {
    vf d[2];
    factors f[2];
    vu c[2], high[2];
    HALVES d[h] = vhalf16(s + h * VW, 16);
    for (int64_t g = 0; g < 8; g++) { // 32 inputs, two scales
        const uint8_t* low = s + 18 * NR + 8 * (g / 4 * 8 + g % 2 * 4) * NR;
        const int64_t n = g % 4 / 2 * 4;
        for (int64_t t = 0; t < 4; t++) {
            HALVES {
                twice(d[h] * vsigned(vbyte(s + h * VW, 2 * g + t / 2)), f[h].scale);
                codes(low, t, h, c);
                codes(s + 146 * NR, g / 4 * 4 + t, h, high);
                for (int j = 0; j < 2; j++)
                    c[j] = (c[j] >> n & 0x0f0f0f0f) | (high[j] >> g % 4 * 2 << 4 & 0x30303030);
                take(DOT, 0, 6, 32, 0, c, &f[h], o, h, 16 * g + 4 * t);
            }
        }
    }
}

#define WIDEN_ALL(CALL)                                                                            \
    for (int64_t i = 0; i < n; i++) {                                                              \
        CALL;                                                                                      \
        s += bytes, o.to += words, o.x += words / NR;                                              \
    }

// take_blocks widens n blocks of all columns of a panel.
VI void take_blocks(const int DOT, int kind, const uint8_t* s, int64_t n, sink* to) {
    const block_form form = form_of(kind);
    const int64_t bytes = form.bytes * NR, words = form.size / 2 * NR;
    sink o = *to;
    switch (kind) {
    case PB_Q8_0:
        WIDEN_ALL(widen_q8_0(DOT, s, &o));
        break;
    case PB_Q4_0:
        WIDEN_ALL(widen_q4_0(DOT, s, &o));
        break;
    case PB_Q4_K:
        WIDEN_ALL(widen_q45_k(DOT, 0, s, &o));
        break;
    case PB_Q5_K:
        WIDEN_ALL(widen_q45_k(DOT, 1, s, &o));
        break;
    case PB_Q6_K:
        WIDEN_ALL(widen_q6_k(DOT, s, &o));
    }
    *to = o;
}

// widen_blocks writes the words of n blocks.
static void widen_blocks(int kind, const uint8_t* s, int64_t n, uint32_t* to) {
    sink o = {.to = to};
    take_blocks(0, kind, s, n, &o);
}

#if PB_DOT
// dot_blocks adds the products of n blocks and one row of words to the two vectors at c.
static void dot_blocks(int kind, const uint8_t* s, int64_t n, const float* x, float* c, int add) {
    sink o = {.x = x};
    if (add) o.sum[0] = vload(c), o.sum[1] = vload(c + VW);
    take_blocks(1, kind, s, n, &o);
    vstore(c, o.sum[0]);
    vstore(c + VW, o.sum[1]);
}
#endif

// pack_blocks writes one panel of rows of a->k bytes.
static void pack_blocks(const pb_pack* a, int64_t p) {
    const block_form f = form_of((int)a->c);
    const int64_t cols = imin(NR, a->n - p * NR);
    uint8_t* to = (uint8_t*)a->dst + p * a->k * NR;
    if (cols < NR) memset(to, 0, (size_t)(a->k * NR));
    for (int64_t i = 0; i < a->k; i += f.bytes, to += f.bytes * NR) {
        for (int64_t j = 0; j < cols; j++) {
            const uint8_t* src = (const uint8_t*)a->src + (p * NR + j) * a->row + i;
            for (int64_t b = 0; b < f.heads; b++)
                to[b * NR + j] = src[f.head + b];
            if (f.head == 0) src += f.heads;
            uint8_t* unit = to + f.heads * NR + 8 * j;
            for (int64_t b = f.heads; b < f.bytes; b += 8, src += 8, unit += 8 * NR) {
                for (int e = 0; e < 8; e++)
                    unit[e] = src[e % 4 * 2 + e / 4];
            }
        }
    }
}
