// AVX2, FMA and F16C: Intel from Haswell (2013), AMD from Excavator and Zen.
#if defined(__x86_64__) && defined(__GNUC__)
#define PB_ISA 2
#define VW 8
#define MR 6
#define LEVEL avx2
#include <immintrin.h>
#include <math.h>
#include <string.h>
#ifdef __clang__
#pragma clang attribute push(__attribute__((target("avx2,fma,f16c"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx2,fma,f16c")
#endif
#include "level.h"
#ifdef __clang__
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif
#endif
