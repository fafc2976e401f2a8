// The register tile: R rows x NV vectors of columns, R <= MR, NV <= 2. Everything that multiplies
// matrices (linear layers, convolutions, attention) ends here.
//
// A lies in blocks of VW channels, [C/VW][rows][VW], so the R rows of one channel block are R
// neighbouring vectors whatever the row stride of the tensor was: no cache set is hit twice.
// B lies in panels [K][NR]; two bf16 values that are VW columns apart share a word (see vload_w2).
// C is written as [NV][R][VW], which is the layout of A again (attention multiplies the scores with
// V without moving them).

// span is one walk over A and B: for every tap (one, except in convolutions) c channels.
typedef struct {
    int64_t taps;
    const int64_t* tap; // offset into A of every tap
    int64_t block;      // offset between channel blocks in A
    int64_t c;          // channels of a tap
    int64_t b_tap;      // rows of B between taps
} span;

#ifdef PB_SMALL_CODE
enum { K_UNROLL = 1, R_UNROLL = 1 };
#define UKR_BODY static __attribute__((noinline))
#else
enum { K_UNROLL = 4, R_UNROLL = 16 };
#define UKR_BODY VI // R, NV and DT are constants in every copy: the accumulators become registers
#endif

typedef void (*ukr_fn)(const float* a, const void* b, float* c, const span* s, int add);

#define STEP(k)                                                                                    \
    do {                                                                                           \
        vf b0, b1;                                                                                 \
        vload_w2(DT, bt, &b0, &b1);                                                                \
        bt += NR * es;                                                                             \
        _Pragma("GCC unroll R_UNROLL") for (int i = 0; i < R; i++) {                               \
            vf ai = vset(at[i * VW + (k)]);                                                        \
            x[i][0] = vfma(ai, b0, x[i][0]);                                                       \
            if (NV > 1) x[i][1] = vfma(ai, b1, x[i][1]);                                           \
        }                                                                                          \
    } while (0)

UKR_BODY void ukr(const int R, const int NV, const int DT, const float* a, const void* b, float* c,
                  const span* s, int add) {
    const int64_t es = DT == PB_F32 ? 4 : 2;
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
        const char* bt = (const char*)b + t * s->b_tap * NR * es;
        for (int64_t k0 = 0; k0 < full; k0++, at += s->block) {
            _Pragma("GCC unroll K_UNROLL") for (int k = 0; k < VW; k++) STEP(k);
        }
        for (int64_t k = 0; k < tail; k++)
            STEP(k);
    }
    _Pragma("GCC unroll R_UNROLL") for (int i = 0; i < R; i++) {
        vstore(c + i * VW, x[i][0]);
        if (NV > 1) vstore(c + (R + i) * VW, x[i][1]);
    }
}

#define UKR(R, NV, DT)                                                                             \
    static void ukr_##R##_##NV##_##DT(const float* a, const void* b, float* c, const span* s,      \
                                      int add) {                                                   \
        ukr(R, NV, DT, a, b, c, s, add);                                                           \
    }
// Weights of two bytes have no one-vector variant: only the last panel of a layer would use it.
#define UKR_ROWS(R) UKR(R, 1, 0) UKR(R, 2, 0) UKR(R, 2, 1) UKR(R, 2, 2)
#define UKR_NAMES(R)                                                                               \
    {                                                                                              \
        {ukr_##R##_1_0, ukr_##R##_2_0}, {ukr_##R##_2_1, ukr_##R##_2_1}, {                          \
            ukr_##R##_2_2, ukr_##R##_2_2                                                           \
        }                                                                                          \
    }

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

// ukrs[rows - 1][dtype][vectors - 1]
static const ukr_fn ukrs[MR][3][2] = {
    UKR_NAMES(1),  UKR_NAMES(2),  UKR_NAMES(3),  UKR_NAMES(4),
#if MR > 4
    UKR_NAMES(5),  UKR_NAMES(6),
#endif
#if MR > 6
    UKR_NAMES(7),  UKR_NAMES(8),  UKR_NAMES(9),  UKR_NAMES(10),
    UKR_NAMES(11), UKR_NAMES(12), UKR_NAMES(13), UKR_NAMES(14),
#endif
};
