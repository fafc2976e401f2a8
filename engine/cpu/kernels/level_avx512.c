// AVX-512 F, BW, DQ and VL with f32 arithmetic: Intel from Skylake-X, AMD from Zen 4.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(PB_RACE)
#define PB_ISA 3
#define VW 16
#define MR 14
#define LEVEL avx512
#include <immintrin.h>
#include <math.h>
#include <string.h>
#ifdef __clang__
#pragma clang attribute push(                                                                      \
    __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c"))),                   \
    apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")
#endif
#include "level.h"
#ifdef __clang__
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif
#endif
