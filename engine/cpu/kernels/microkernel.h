// The register tile: R rows x NV vectors of columns, R <= MR, NV <= 2. Everything that multiplies
// matrices (linear layers, convolutions, attention) ends here.
//
// A lies in blocks of VW steps, [C/VW][rows][VW], so the R rows of one block are R neighbouring
// vectors whatever the row stride of the tensor was: no cache set is hit twice. A step is an f32
// channel, or with UKR_DOT a word of two bf16 channels (bf16.h).
// B lies in panels. f32 and f16: [K][NR], a row a channel. bf16: [K/2][NR] words, a row a pair of
// channels; UKR_DOT multiplies with the words as they are, UKR_BF16 widens their halves. UKR_I8:
// int8.h; its sums are 32-bit numbers.
// C is written in f32 as [NV][R][VW], which is the layout of A again (attention multiplies the
// scores with V without moving them).

// How a tile multiplies; the first three equal the storage types of B with A in f32. halves_of tells
// kinds that take two steps for a row of B.
enum { UKR_F32, UKR_BF16, UKR_F16, UKR_DOT = PB_DOT ? 3 : -1, UKR_I8 = 3 + PB_DOT };

VI int halves_of(int kind) { return kind == UKR_BF16 || (kind == UKR_I8 && !PB_DOT); }

// span is one walk over A and B: for every tap (one, except in convolutions) c steps.
typedef struct {
    int64_t taps;
    const int64_t* tap; // offset into A of every tap
    int64_t block;      // offset between blocks in A
    int64_t c;          // steps of a tap
    int64_t b_tap;      // rows of B between taps
} span;

typedef void (*ukr_fn)(const float* a, const void* b, float* c, const span* s, int add);

// The kinds that a level compiles itself: with PB_DOT those above UKR_F16, as the level below has
// the same registers. Its table of microkernels is UKRS[rows - 1][kind - UKR_OWN][vectors - 1].
enum { UKR_OWN = PB_DOT ? 3 : 0, UKR_KINDS = UKR_I8 + 1 - UKR_OWN };
#if PB_DOT
extern const ukr_fn UKRS_BELOW[MR][4][2];
#endif
extern const ukr_fn UKRS[MR][UKR_KINDS][2];

VI ukr_fn ukr_of(int64_t rows, int kind, int nv) {
#if PB_DOT
    if (kind < UKR_OWN) return UKRS_BELOW[rows - 1][kind][nv];
#endif
    return UKRS[rows - 1][kind - UKR_OWN][nv];
}

#ifdef PB_AMX
#include "tiles.h"
#else
#ifdef PB_SMALL_CODE
enum { K_UNROLL = 1, R_UNROLL = 1 };
#define UKR_BODY static __attribute__((noinline))
#else
enum { K_UNROLL = 4, R_UNROLL = 16 };
#define UKR_BODY VI // R, NV and KIND are constants in every copy: the accumulators become registers
#endif

// load_b loads a row of a panel: columns 0 .. VW-1 and VW .. NR-1; with UKR_BF16 one half of the
// row's words. The empty asm hides that both halves come from the same words, which would cost two
// more registers than there are.
VI void load_b(const int KIND, const int half, const char* p, vf* b0, vf* b1) {
    if (KIND == UKR_F16) {
        *b0 = vload_f16((const uint16_t*)p);
        *b1 = vload_f16((const uint16_t*)p + VW);
    } else if (KIND == UKR_BF16 && half == 0) {
        *b0 = (vf)(*(const vu_mem*)p << 16);
        *b1 = (vf)(*(const vu_mem*)(p + 4 * VW) << 16);
    } else if (KIND == UKR_I8 && !PB_DOT) {
        if (half) __asm__("" : "+r"(p));
        *b0 = vhalf_i8(half, vload((const float*)p));
        *b1 = vhalf_i8(half, vload((const float*)p + VW));
    } else if (KIND == UKR_BF16) {
        __asm__("" : "+r"(p));
        *b0 = (vf)(*(const vu_mem*)p & 0xffff0000u);
        *b1 = (vf)(*(const vu_mem*)(p + 4 * VW) & 0xffff0000u);
    } else {
        *b0 = vload((const float*)p);
        *b1 = vload((const float*)p + VW);
    }
}

VI vf mac(const int KIND, vf acc, vf a, vf b) {
    return KIND == UKR_DOT  ? vdot(acc, a, b)
           : KIND == UKR_I8 ? vdot_i8(acc, a, b)
                            : vadd_mul(acc, a, b);
}

#define STEP(k, half)                                                                              \
    do {                                                                                           \
        vf b0, b1;                                                                                 \
        load_b(KIND, half, bt, &b0, &b1);                                                          \
        if (!halves_of(KIND) || half) bt += row;                                                   \
        _Pragma("GCC unroll R_UNROLL") for (int i = 0; i < R; i++) {                               \
            const float* p = at + i * VW + (k);                                                    \
            vf ai = KIND == UKR_DOT || KIND == UKR_I8 ? vset_word(p) : vset(*p);                   \
            x[i][0] = mac(KIND, x[i][0], ai, b0);                                                  \
            if (NV > 1) x[i][1] = mac(KIND, x[i][1], ai, b1);                                      \
        }                                                                                          \
    } while (0)

UKR_BODY void ukr(const int R, const int NV, const int KIND, const float* a, const void* b,
                  float* c, const span* s, int add) {
    const int64_t row = KIND == UKR_F16 ? 2 * NR : 4 * NR;
    vf x[MR][2];
    if (add) {
        _Pragma("GCC unroll R_UNROLL") for (int i = 0; i < R; i++) {
            x[i][0] = vload(c + i * VW);
            if (NV > 1) x[i][1] = vload(c + (R + i) * VW);
        }
    } else {
        _Pragma("GCC unroll R_UNROLL") for (int i = 0; i < R; i++) x[i][0] = x[i][1] = vzero();
    }
    const int64_t full = s->c / VW, tail = s->c % VW;
    for (int64_t t = 0; t < s->taps; t++) {
        const float* at = a + s->tap[t];
        const char* bt = (const char*)b + t * s->b_tap * row;
        for (int64_t k0 = 0; k0 < full; k0++, at += s->block) {
            _Pragma("GCC unroll K_UNROLL") for (int k = 0; k < VW; k += 2) {
                STEP(k, 0);
                STEP(k + 1, 1);
            }
        }
        int64_t k = 0;
        for (; k + 2 <= tail; k += 2) {
            STEP(k, 0);
            STEP(k + 1, 1);
        }
        if (k < tail) STEP(k, 0);
    }
    _Pragma("GCC unroll R_UNROLL") for (int i = 0; i < R; i++) {
        vstore(c + i * VW, x[i][0]);
        if (NV > 1) vstore(c + (R + i) * VW, x[i][1]);
    }
}

#define UKR(R, NV, KIND)                                                                           \
    static void ukr_##R##_##NV##_##KIND(const float* a, const void* b, float* c, const span* s,    \
                                        int add) {                                                 \
        ukr(R, NV, KIND, a, b, c, s, add);                                                         \
    }
#if PB_DOT
#define UKR_ROWS(R) UKR(R, 1, 3) UKR(R, 2, 3) UKR(R, 1, 4) UKR(R, 2, 4)
#define UKR_NAMES(R)                                                                               \
    { {ukr_##R##_1_3, ukr_##R##_2_3}, {ukr_##R##_1_4, ukr_##R##_2_4} }
#else
// Stored weights of two bytes have no one-vector variant: only the last panel of a layer would use
// it.
#define UKR_ROWS(R) UKR(R, 1, 0) UKR(R, 2, 0) UKR(R, 2, 1) UKR(R, 2, 2) UKR(R, 1, 3) UKR(R, 2, 3)
#define UKR_NAMES(R)                                                                               \
    {                                                                                              \
        {ukr_##R##_1_0, ukr_##R##_2_0}, {ukr_##R##_2_1, ukr_##R##_2_1},                            \
            {ukr_##R##_2_2, ukr_##R##_2_2}, {ukr_##R##_1_3, ukr_##R##_2_3}                         \
    }
#endif

UKR_ROWS(1)
UKR_ROWS(2)
UKR_ROWS(3)
UKR_ROWS(4)
#if MR > 4
UKR_ROWS(5)
UKR_ROWS(6)
#endif
#if MR > 6
UKR_ROWS(7)
UKR_ROWS(8)
UKR_ROWS(9)
UKR_ROWS(10)
UKR_ROWS(11)
UKR_ROWS(12)
UKR_ROWS(13)
UKR_ROWS(14)
#endif

const ukr_fn UKRS[MR][UKR_KINDS][2] = {
    UKR_NAMES(1),  UKR_NAMES(2),  UKR_NAMES(3),  UKR_NAMES(4),
#if MR > 4
    UKR_NAMES(5),  UKR_NAMES(6),
#endif
#if MR > 6
    UKR_NAMES(7),  UKR_NAMES(8),  UKR_NAMES(9),  UKR_NAMES(10),
    UKR_NAMES(11), UKR_NAMES(12), UKR_NAMES(13), UKR_NAMES(14),
#endif
};

enum { UKR_PANELS = 1, UKR_ROW = PB_DOT };

// run_ukr multiplies rows x nv + 1 vectors.
VI void run_ukr(int64_t rows, int kind, int nv, const float* a, const void* b, float* c,
                int64_t next, float* d, const span* s, int add) {
    (void)next, (void)d;
    ukr_of(rows, kind, nv)(a, b, c, s, add);
}
VI void tiles_off(void) {}
#endif

// panels_of is how many of n panels a call of run_ukr takes.
VI int64_t panels_of(int kind, int64_t n) {
    return kind == UKR_DOT || kind == UKR_I8 ? imin(n, UKR_PANELS) : 1;
}
