// Included by every level file behind its definitions: all kernels, then the level's table. LEVEL is
// its name, BELOW the level whose microkernels it takes where it has none of its own. A level with a
// TWIN, which has the same vectors and words, compiles its products and takes all else from there.
#define PASTE_(a, b) a##_##b
#define PASTE(a, b) PASTE_(a, b)
#define QUOTE_(a) #a
#define QUOTE(a) QUOTE_(a)
#ifdef TWIN
#define OTHERS PASTE(pb, TWIN)
#define UKRS PASTE(pb_ukrs, TWIN)
#else
#define OTHERS PASTE(pb, LEVEL)
#define UKRS PASTE(pb_ukrs, LEVEL)
#endif
#define UKRS_BELOW PASTE(pb_ukrs, BELOW)
#define KERNEL(name) PASTE(OTHERS, name)

#include "vec.h"
#include "bf16.h"
#include "int8.h"
#include "fp8.h"
#include "blocks.h"
#include "activation.h"
#include "microkernel.h"
#include "gemm.h"
#include "conv.h"
#include "attention.h"
#ifdef TWIN
void KERNEL(pack)(const pb_pack*);
void KERNEL(quantise_rows)(const pb_quant*);
void KERNEL(attn_pack)(const pb_attn*);
void KERNEL(ew)(const pb_ew*);
void KERNEL(copy)(const pb_copy*);
void KERNEL(qk)(const pb_qk*);
void KERNEL(gather)(const pb_gather*);
void KERNEL(mean)(const pb_mean*);
void KERNEL(stats)(const pb_stats*);
#else
#include "pack.h"
#include "elementwise.h"
#include "copy.h"
#include "qknorm.h"
#endif

// PEAK keeps many independent chains of MAC busy, for the speed tests, and returns the flops done;
// a lane of MAC does FLOPS.
#define PEAK(NAME, MAC, FLOPS)                                                                     \
    static double NAME(int64_t n) {                                                                \
        enum { CHAINS = PB_ISA == 3 ? 24 : PB_ISA == 2 ? 12 : 8 };                                 \
        vf x[CHAINS], a = vset(0.999f), b = vset(0.001f);                                          \
        _Pragma("GCC unroll 32") for (int i = 0; i < CHAINS; i++) x[i] = vset((float)i);           \
        for (int64_t k = 0; k < n; k++) {                                                          \
            _Pragma("GCC unroll 32") for (int i = 0; i < CHAINS; i++) x[i] = MAC;                  \
        }                                                                                          \
        vf s = vzero();                                                                            \
        _Pragma("GCC unroll 32") for (int i = 0; i < CHAINS; i++) s = s + x[i];                    \
        /* the test keeps the loop alive */                                                        \
        return vsum(s) == 0 ? 0 : (double)FLOPS * (double)n * CHAINS * VW;                         \
    }

PEAK(peak, vfma(x[i], a, b), 2)
#ifdef PB_AMX
static double dot_peak(int64_t n) {
    static __thread uint32_t zeros[16 * 16];
    tiles_on(16);
    tile_loadd(TILE_A, zeros, 64);
    tile_loadd(TILE_B0, zeros, 64);
    for (int64_t k = 0; k < n; k++) {
        tile_dpbf16ps(TILE_C0, TILE_A, TILE_B0);
        tile_dpbf16ps(TILE_C1, TILE_A, TILE_B0);
        tile_dpbf16ps(TILE_C2, TILE_A, TILE_B0);
        tile_dpbf16ps(TILE_C3, TILE_A, TILE_B0);
    }
    tiles_off();
    return (double)n * 4 * 2 * 16 * 16 * 32;
}
#elif PB_DOT
PEAK(dot_peak, vdot(x[i], a, b), 4)
#else
#define dot_peak 0
#endif

const pb_kernels PASTE(pb_level, LEVEL) = {
    QUOTE(LEVEL),
    VW,
    MR,
    NR,
    PB_DOT,
    UKR_PANELS,
    KERNEL(pack),
    KERNEL(quantise_rows),
    KERNEL(attn_pack),
    attn,
    gemm,
    KERNEL(ew),
    KERNEL(copy),
    KERNEL(qk),
    KERNEL(gather),
    KERNEL(mean),
    KERNEL(stats),
    peak,
    dot_peak,
};
