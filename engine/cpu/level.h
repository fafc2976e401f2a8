// Included by every level file behind its definitions: all kernels, then the table LEVEL_TABLE.
#include "vec.h"
#include "activation.h"
#include "microkernel.h"
#include "gemm.h"
#include "conv.h"
#include "pack.h"
#include "attention.h"
#include "elementwise.h"
#include "copy.h"
#include "qknorm.h"

// peak keeps 24 (portable: 8) independent chains of fused multiply-adds busy, for the speed tests.
static double peak(int64_t n) {
    enum { CHAINS = PB_ISA == 3 ? 24 : PB_ISA == 2 ? 12 : 8 };
    vf x[CHAINS], a = vset(0.999f), b = vset(0.001f);
    _Pragma("GCC unroll 32") for (int i = 0; i < CHAINS; i++) x[i] = vset((float)i);
    for (int64_t k = 0; k < n; k++) {
        _Pragma("GCC unroll 32") for (int i = 0; i < CHAINS; i++) x[i] = vfma(x[i], a, b);
    }
    vf s = vzero();
    _Pragma("GCC unroll 32") for (int i = 0; i < CHAINS; i++) s = s + x[i];
    return vsum(s) == 0 ? 0 : 2.0 * (double)n * CHAINS * VW; // the test keeps the loop alive
}

const pb_kernels LEVEL_TABLE = {LEVEL_NAME, VW,   MR, NR,     pack, gemm,  attn_pack, attn,
                                ew,         copy, qk, gather, mean, stats, peak};
