// AVX-512 with BF16, and AMX tiles of bf16 and int8: Intel from Sapphire Rapids.
#include "kernels.h"
#ifdef PB_WITH_AMX
#define PB_ISA 3
#define VW 16
#define MR 14
#define PB_DOT 1
#define PB_AMX
#define LEVEL amx
#define BELOW avx512
#define TWIN avx512bf16
#include <immintrin.h>
#include <math.h>
#include <string.h>
#ifdef __clang__
#pragma clang attribute push(                                                                      \
    __attribute__((                                                                                \
        target("amx-tile,amx-bf16,amx-int8,avx512bf16,avx512vnni,avx512f,avx512bw,avx512dq,"      \
               "avx512vl,avx2,fma,f16c"))),                                                        \
    apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("amx-tile,amx-bf16,amx-int8,avx512bf16,avx512vnni")
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")
#endif
#include "level.h"
#ifdef __clang__
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif
#endif
