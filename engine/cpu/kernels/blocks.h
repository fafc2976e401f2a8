// Weights in blocks of GGUF files and others that stay as they are: a panel holds the bytes of its NR rows
// side by side, and is widened to words of bf16 piece by piece. The formulas are those of
// engine/gguf, with the same roundings: products of factors and codes are exact in f32, so the
// multiply-add behind them may round once or twice.
//
// Of a block, factors in f16 come first, those of all columns side by side, then other factors,
// byte i of all columns and then the next. Behind them lie the codes, 8 bytes of a column at a
// time: those with even numbers, then those with odd ones. So a lane is one of a pair of
// neighbouring inputs, its 32 bits hold codes of four pairs, and two vectors of lanes rounded to
// bf16 are a vector of words, each a column. Codes that need no rounding are four bytes of a column
// at a time, and a lane is a column (fp8.h).

enum { PB_Q8_0 = 1, PB_Q4_0, PB_Q4_K, PB_Q5_K, PB_Q6_K, PB_F8_E4M3, PB_F8_E5M2, PB_NVFP4, PB_MXFP8, PB_INT8,
       PB_F8_BLOCKS };

typedef uint8_t vb8 __attribute__((vector_size(VW), aligned(1), may_alias));

// block_form tells how the file stores a block: elements, bytes, where factors and codes lie, how
// many of them there are, and bits that are turned in codes (those of Q8_0 are signed in the file).
// lanes: a lane has four bytes of a column, in their order or, of fp8, in that of fp8.h. A panel of
// rows with factors begins with these, a float a column: they are multiplied into words as these are
// made, or into sums.
typedef struct {
    int64_t size, bytes, half, halves, head, heads, codes, turn;
    enum { OF_GGUF, IN_ORDER, OF_FP8 } lanes;
    enum { NO_FACTORS, OF_WORDS, OF_SUMS } factors;
} block_form;

static block_form form_of(int kind) {
    static const block_form forms[] = {
        {0},
        {32, 34, .halves = 1, .codes = 2, .turn = 0x80},
        {32, 18, .halves = 1, .codes = 2},
        {256, 144, .halves = 2, .head = 4, .heads = 12, .codes = 16},
        {256, 176, .halves = 2, .head = 4, .heads = 12, .codes = 16},
        {256, 210, .half = 208, .halves = 1, .head = 192, .heads = 16},
        {8, 8, .lanes = OF_FP8, .factors = OF_SUMS},
        {8, 8, .lanes = OF_FP8, .factors = OF_SUMS},
        {32, 18, .heads = 2, .codes = 2, .lanes = IN_ORDER, .factors = OF_SUMS},
        {64, 66, .heads = 2, .codes = 2, .lanes = OF_FP8, .factors = OF_SUMS},
        {8, 8, .lanes = IN_ORDER, .factors = OF_WORDS},
        {128, 132, .heads = 4, .codes = 4, .lanes = OF_FP8, .factors = OF_SUMS},
    };
    return forms[kind];
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

// factors are those of VW columns, every one twice, for both inputs of a pair: a weight is
// scale * code + low. Codes are not moved to bit 0 before they become numbers: scale[i] is for
// those i bytes up.
typedef struct {
    vf scale[2][2], low[2];
} factors;

VI void twice(vf v, vf* to) { to[0] = TWICE_LOW(v), to[1] = TWICE_HIGH(v); }

// set_factors is for codes at bit AT of their bytes.
VI void set_factors(const int AT, vf scale, vf low, factors* f) {
    twice(scale * vset(1.0f / (1 << AT)), f->scale[0]);
    for (int j = 0; j < 2; j++)
        f->scale[1][j] = f->scale[0][j] * vset(1.0f / 256);
    twice(low, f->low);
}

// head_bytes returns the bytes of a column before its blocks.
VI int64_t head_bytes(block_form f) { return f.factors ? 4 : 0; }

// panel_bytes returns the bytes of a panel of c inputs.
VI int64_t panel_bytes(block_form f, int64_t c) { return (c / f.size * f.bytes + head_bytes(f)) * NR; }

// sink takes words in the order of inputs: it stores them, or adds their products with a row of x.
typedef struct {
    uint32_t* to;
    const float* x;
    vf sum[2];
    const float* scale; // of the columns, of a form with factors
    int64_t rotated;    // inputs that were rotated together
} sink;

#ifdef PB_SMALL_CODE
#define UNROLLED(i, n) for (int i = 0; i < n; i++)
#define TAKE static __attribute__((noinline))
#else
#define UNROLLED(i, n) _Pragma("GCC unroll 8") for (int i = 0; i < n; i++)
#define TAKE VI
#endif

// take widens four pairs of inputs of VW columns, whose codes are the bits MASK of the bytes of c.
TAKE void take(const int DOT, const uint32_t MASK, const vu* c, const factors* f, sink* o,
               const int half, int64_t pair) {
    UNROLLED(i, 4) {
        vf v[2];
        UNROLLED(j, 2) {
            const vu code = (i < 2 ? c[j] : c[j] >> 16) & MASK << 8 * (i % 2);
            v[j] = vfma(f->scale[i % 2][j], vofu(code), f->low[j]);
        }
        if (DOT) {
            o->sum[half] = vdot(o->sum[half], vset_word(o->x + pair + i), vwords(v[0], v[1]));
        } else {
            vstore_words((float*)(o->to + (pair + i) * NR + half * VW), v[0], v[1]);
        }
    }
}

// codes loads unit t of 8 bytes of VW columns.
VI void codes(const uint8_t* s, int64_t t, const int half, vu* c) {
    const vu_mem* from = (const vu_mem*)(s + 8 * (t * NR + half * VW));
    c[0] = from[0], c[1] = from[1];
}

// join puts the bits of high from bit FROM on above the 4 bits of c at bit AT, and both at bit 0.
VI void join(const int AT, const int FROM, vu* c, const vu* high) {
    for (int j = 0; j < 2; j++) {
        const vu up = FROM < 4 ? high[j] << (4 - FROM) : high[j] >> (FROM - 4);
        c[j] = (c[j] >> AT & 0x0f0f0f0f) | (up & 0xf0f0f0f0);
    }
}

// ahead fetches n bytes of each row of a panel: the runs that blocks are read in are too short for
// the processor to see them.
VI void ahead(const uint8_t* s, int64_t n) {
    for (int64_t i = 0; i < n * NR; i += 64)
        __builtin_prefetch(s + i);
}

VI void widen_q8_0(const int DOT, const uint8_t* s, sink* o) {
    factors f[2];
    vu c[2];
    UNROLLED(h, 2) {
        const vf d = vload_f16((const uint16_t*)s + h * VW);
        set_factors(0, d, d * vset(-128), &f[h]);
    }
    for (int64_t t = 0; t < 4; t++) {
        UNROLLED(h, 2) {
            codes(s + 2 * NR, t, h, c);
            take(DOT, 255, c, &f[h], o, h, 4 * t);
        }
    }
}

VI void widen_q4_0(const int DOT, const uint8_t* s, sink* o) {
    factors f[2];
    vu c[2];
    UNROLLED(n, 2) {
        UNROLLED(h, 2) {
            const vf d = vload_f16((const uint16_t*)s + h * VW);
            set_factors(4 * n, d, d * vset(-8), &f[h]);
        }
        for (int64_t t = 0; t < 2; t++) {
            UNROLLED(h, 2) {
                codes(s + 2 * NR, t, h, c);
                take(DOT, 15 << 4 * n, c, &f[h], o, h, 8 * n + 4 * t);
            }
        }
    }
}

// scale_min unpacks scale and minimum of group g of Q4_K and Q5_K.
VI void scale_min(const int AT, const uint8_t* s, int64_t g, const int half, factors* f) {
    const uint16_t* d = (const uint16_t*)s + half * VW;
    vu scale, low;
    s += 4 * NR + half * VW;
    if (g < 4) {
        scale = vbyte(s, g) & 63, low = vbyte(s, g + 4) & 63;
    } else {
        const vu both = vbyte(s, g + 4);
        scale = (both & 15) | vbyte(s, g - 4) >> 6 << 4, low = both >> 4 | vbyte(s, g) >> 6 << 4;
    }
    set_factors(AT, vload_f16(d) * vofu(scale), -vload_f16(d + NR) * vofu(low), f);
}

VI void widen_q45_k(const int DOT, const int FIFTH, const uint8_t* s, sink* o) {
    factors f[2];
    vu c[2], high[2];
    const uint8_t *fifth = s + 16 * NR, *q = fifth + (FIFTH ? 32 * NR : 0);
    const int AT_ONCE = FIFTH ? 8 : 2, GROUP = FIFTH ? 22 : 18; // groups; bytes of one
    for (int64_t g = 0; g < 8; g += AT_ONCE) {
        UNROLLED(i, AT_ONCE) {
            const int at = FIFTH ? 0 : i % 2 * 4;
            ahead(s + (g + i + 8) * GROUP * NR, GROUP);
            UNROLLED(h, 2) scale_min(at, s, g + i, h, &f[h]);
            for (int64_t t = 0; t < 4; t++) {
                UNROLLED(h, 2) {
                    codes(q, (g + i) / 2 * 4 + t, h, c);
                    if (FIFTH) {
                        codes(fifth, t, h, high);
                        join(i % 2 * 4, i, c, high);
                    }
                    take(DOT, (FIFTH ? 31 : 15) << at, c, &f[h], o, h, 16 * (g + i) + 4 * t);
                }
            }
        }
    }
}

VI void widen_q6_k(const int DOT, const uint8_t* s, sink* o) {
    factors f[2];
    vu c[2], high[2];
    for (int64_t half = 0; half < 2; half++) { // 128 inputs
        UNROLLED(j, 4) {
            for (int64_t i = 0; i < 2; i++) { // 16 inputs
                const int64_t g = 8 * half + 2 * j + i;
                ahead(s + (210 + 13 * g) * NR, 13);
                UNROLLED(h, 2) {
                    const vf d = vload_f16((const uint16_t*)s + h * VW);
                    const vf scale = d * vsigned(vbyte(s + 2 * NR + h * VW, g));
                    set_factors(0, scale, scale * vset(-32), &f[h]);
                }
                for (int64_t t = 2 * i; t < 2 * i + 2; t++) {
                    UNROLLED(h, 2) {
                        codes(s + 18 * NR, 8 * half + j % 2 * 4 + t, h, c);
                        codes(s + 146 * NR, 4 * half + t, h, high);
                        join(j / 2 * 4, 2 * j, c, high);
                        take(DOT, 63, c, &f[h], o, h, 64 * half + 16 * j + 4 * t);
                    }
                }
            }
        }
    }
}

// give takes the words of a pair of inputs of VW columns.
VI void give(const int DOT, vu words, sink* o, const int half, int64_t pair) {
    if (DOT) {
        o->sum[half] = vdot(o->sum[half], vset_word(o->x + pair), (vf)words);
    } else {
        vstore((float*)(o->to + pair * NR + half * VW), (vf)words);
    }
}

// lane_codes loads unit t of 4 bytes of VW columns.
VI vu lane_codes(const uint8_t* s, int64_t t, const int half) {
    return *(const vu_mem*)(s + 4 * (t * NR + half * VW));
}

VI void widen_f8(const int DOT, const int E5, const uint8_t* s, sink* o) {
    ahead(s + 64 * NR, 8);
    UNROLLED(t, 2) {
        UNROLLED(h, 2) {
            const vu c = lane_codes(s, t, h);
            give(DOT, f8_words(E5, 0, c), o, h, 2 * t);
            give(DOT, f8_words(E5, 1, c), o, h, 2 * t + 1);
        }
    }
}

// exact is a pair of inputs that bf16 holds.
VI vu exact(vf even, vf odd) { return (vu)even >> 16 | ((vu)odd & 0xffff0000u); }

// fp4 widens the lower four bits of lanes: E2M1.
VI vf fp4(vu c) {
#define FP4 0, 0.5f, 1, 1.5f, 2, 3, 4, 6, -0.0f, -0.5f, -1, -1.5f, -2, -3, -4, -6
    static const float table[16] = {FP4};
#if PB_ISA == 3
    return _mm512_permutexvar_ps((__m512i)c, _mm512_loadu_ps(table));
#elif PB_ISA == 2
    return (vf)((vu)_mm256_permutevar8x32_ps(_mm256_loadu_ps(table), (__m256i)c) | (c & 8) << 28);
#else
    vf v;
    for (int i = 0; i < VW; i++)
        v[i] = table[c[i] & 15];
    return v;
#endif
}

VI void widen_nvfp4(const int DOT, const uint8_t* s, sink* o) {
    ahead(s + 144 * NR, 18);
    UNROLLED(g, 2) {
        UNROLLED(h, 2) {
            const vf scale = (vf)(f8_words(0, 0, vbyte(s + h * VW, g)) << 16);
            for (int64_t t = 2 * g; t < 2 * g + 2; t++) {
                const vu c = lane_codes(s + 2 * NR, t, h);
                UNROLLED(i, 4) {
                    const vf even = fp4(c >> (8 * i + 4)) * scale, odd = fp4(c >> 8 * i) * scale;
                    give(DOT, exact(even, odd), o, h, 4 * t + i);
                }
            }
        }
    }
}

VI void widen_mxfp8(const int DOT, const uint8_t* s, sink* o) {
    ahead(s + 264 * NR, 66);
    UNROLLED(g, 2) {
        UNROLLED(h, 2) {
            const vf scale = (vf)(vbyte(s + h * VW, g) << 23);
            for (int64_t t = 8 * g; t < 8 * g + 8; t++) {
                const vu c = lane_codes(s + 2 * NR, t, h);
                UNROLLED(i, 2) {
                    const vu w = f8_words(0, i, c);
                    const vf even = (vf)(w << 16) * scale, odd = (vf)(w & 0xffff0000u) * scale;
                    give(DOT, exact(even, odd), o, h, 2 * t + i);
                }
            }
        }
    }
}

// widen_f8_blocks rounds: the scale of a block is any number.
VI void widen_f8_blocks(const int DOT, const uint8_t* s, sink* o) {
    ahead(s + 132 * NR, 132);
    UNROLLED(h, 2) {
        const uint8_t* d = s + h * VW;
        const vf scale = (vf)(vbyte(d, 0) | vbyte(d, 1) << 8 | vbyte(d, 2) << 16 | vbyte(d, 3) << 24);
        for (int64_t t = 0; t < 32; t++) {
            const vu c = lane_codes(s + 4 * NR, t, h);
            UNROLLED(i, 2) {
                const vu w = f8_words(0, i, c);
                const vh even = vnarrow((vf)(w << 16) * scale);
                const vh odd = vnarrow((vf)(w & 0xffff0000u) * scale);
                const vu low = __builtin_convertvector(even, vu);
                give(DOT, low | __builtin_convertvector(odd, vu) << 16, o, h, 2 * t + i);
            }
        }
    }
}

// rotate_back is engine.Rotate of n vectors of inputs, before the norm.
static void rotate_back(float* v, int64_t n, int64_t group) {
    for (int64_t s = 1; s < group; s *= 4) {
        for (int64_t i = 0; i < n; i++) {
            if (i / s % 4) continue;
            float* p = v + i * VW;
            const vf a = vload(p), b = vload(p + s * VW);
            const vf c = vload(p + 2 * s * VW), d = vload(p + 3 * s * VW), sum = (a + b) + (c + d);
            vstore(p, sum - 2 * d);
            vstore(p + s * VW, sum - 2 * c);
            vstore(p + 2 * s * VW, sum - 2 * b);
            vstore(p + 3 * s * VW, sum - 2 * a);
        }
    }
}

// widen_int8 takes n inputs, at most WIDE_INPUTS: codes times the factor of the row, rotated back and
// rounded to bf16.
VI void widen_int8(const int DOT, const uint8_t* s, int64_t n, sink* o) {
    float v[WIDE_INPUTS * VW];
    const vf norm = vset(o->rotated ? 1 / sqrtf((float)o->rotated) : 1);
    UNROLLED(h, 2) {
        const vf scale = vload(o->scale + h * VW);
        for (int64_t t = 0; t < n / 4; t++) {
            const vu c = lane_codes(s, t, h);
            UNROLLED(i, 4) {
                const vi code = (vi)(c << (24 - 8 * i)) >> 24;
                vstore(v + (4 * t + i) * VW, __builtin_convertvector(code, vf) * scale);
            }
        }
        rotate_back(v, n, o->rotated);
        for (int64_t i = 0; i < n; i += 2) {
            const vh even = vnarrow(vload(v + i * VW) * norm);
            const vh odd = vnarrow(vload(v + (i + 1) * VW) * norm);
            const vu low = __builtin_convertvector(even, vu);
            give(DOT, low | __builtin_convertvector(odd, vu) << 16, o, h, i / 2);
        }
    }
}

#define WIDEN_ALL(CALL)                                                                            \
    for (int64_t i = 0; i < n; i++) {                                                              \
        CALL;                                                                                      \
        s += bytes, o.to += words, o.x += words / NR;                                              \
    }

// scale_columns multiplies the sums of a tile and panel with the factors of columns.
static void scale_columns(const float* head, int64_t rows, float* c) {
    for (int64_t j = 0; j < 2; j++) {
        const vf by = vload(head + j * VW);
        for (int64_t i = 0; i < rows; i++, c += VW)
            vstore(c, vload(c) * by);
    }
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
        break;
    case PB_F8_E4M3:
        WIDEN_ALL(widen_f8(DOT, 0, s, &o));
        break;
    case PB_F8_E5M2:
        WIDEN_ALL(widen_f8(DOT, 1, s, &o));
        break;
    case PB_NVFP4:
        WIDEN_ALL(widen_nvfp4(DOT, s, &o));
        break;
    case PB_MXFP8:
        WIDEN_ALL(widen_mxfp8(DOT, s, &o));
        break;
    case PB_F8_BLOCKS:
        WIDEN_ALL(widen_f8_blocks(DOT, s, &o));
        break;
    case PB_INT8:
        for (int64_t i = 0; i < n * 8; i += WIDE_INPUTS) {
            const int64_t inputs = imin(WIDE_INPUTS, n * 8 - i);
            widen_int8(DOT, s, inputs, &o);
            s += inputs * NR, o.to += inputs / 2 * NR, o.x += inputs / 2;
        }
    }
    *to = o;
}

// widen_blocks writes the words of n blocks.
static void widen_blocks(int kind, const uint8_t* s, int64_t n, sink o) { take_blocks(0, kind, s, n, &o); }

// dot_blocks adds the products of n blocks and one row of words to the two vectors at c.
static void dot_blocks(int kind, const uint8_t* s, int64_t n, sink o, float* c, int add) {
    if (add) o.sum[0] = vload(c), o.sum[1] = vload(c + VW);
    take_blocks(1, kind, s, n, &o);
    vstore(c, o.sum[0]);
    vstore(c + VW, o.sum[1]);
}

#ifndef TWIN
// pack_blocks writes one panel of rows of a->k bytes.
static void pack_blocks(const pb_pack* a, int64_t p) {
    const block_form f = form_of((int)a->c);
    const int64_t cols = imin(NR, a->n - p * NR), panel = (a->k + head_bytes(f)) * NR;
    uint8_t* to = (uint8_t*)a->dst + p * panel;
    if (cols < NR) memset(to, 0, (size_t)panel);
    if (f.factors) {
        float* head = (float*)to;
        for (int64_t j = 0; j < cols; j++)
            head[j] = a->scales ? ((const float*)a->scales)[p * NR + j] : 1;
        to += 4 * NR;
    }
    for (int64_t i = 0; i < a->k; i += f.bytes, to += f.bytes * NR) {
        for (int64_t j = 0; j < cols; j++) {
            const uint8_t* src = (const uint8_t*)a->src + (p * NR + j) * a->row + i;
            for (int64_t b = 0; b < f.halves; b++)
                memcpy(to + 2 * (b * NR + j), src + f.half + 2 * b, 2);
            uint8_t* plane = to + 2 * f.halves * NR + j;
            for (int64_t b = 0; b < f.heads; b++, plane += NR)
                *plane = src[f.head + b];
            if (f.lanes) {
                for (int64_t b = 0; b < f.bytes - f.heads; b++) {
                    const int64_t at = f.lanes == IN_ORDER ? b % 4 : b % 2 * 2 + b % 4 / 2;
                    plane[b / 4 * 4 * NR + 3 * j + at] = src[f.codes + b];
                }
                continue;
            }
            uint8_t* unit = plane + 7 * j;
            for (int64_t b = 2 * f.halves + f.heads; b < f.bytes; b += 8, unit += 8 * NR) {
                for (int e = 0; e < 8; e++)
                    unit[e] = (uint8_t)(src[f.codes + e % 4 * 2 + e / 4] ^ f.turn);
                src += 8;
            }
        }
    }
}
#endif
