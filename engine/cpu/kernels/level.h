// Included by every level file behind its definitions: all kernels, then the table LEVEL_TABLE.
#include "vec.h"
#include "bf16.h"
#include "int8.h"
#include "blocks.h"
#include "activation.h"
#include "microkernel.h"
#include "gemm.h"
#include "conv.h"
#include "pack.h"
#include "attention.h"
#include "elementwise.h"
#include "copy.h"
#include "qknorm.h"

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

const pb_kernels LEVEL_TABLE = {LEVEL_NAME,    VW,        MR,   NR,   PB_DOT, UKR_PANELS, pack,
                                quantise_rows, attn_pack, attn, gemm, ew,     copy,
                                qk,            gather,    mean, stats, peak,  dot_peak};
