// Which levels there are and which of them this CPU runs.
#include "kernels.h"

#define NONE ((const pb_kernels*)0)

#if defined(__x86_64__) && defined(__GNUC__)
static int has_avx2(void) {
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
           __builtin_cpu_supports("f16c");
}
static int has_avx512(void) {
    return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
}
static int has_avx512bf16(void) {
    return has_avx512() && __builtin_cpu_supports("avx512bf16") &&
           __builtin_cpu_supports("avx512vnni");
}
#define AVX2 &pb_level_avx2
#ifdef PB_RACE
#define AVX512 NONE
#define AVX512BF16 NONE
#else
#define AVX512 &pb_level_avx512
#define AVX512BF16 &pb_level_avx512bf16
#endif
#else
static int has_avx2(void) { return 0; }
static int has_avx512(void) { return 0; }
static int has_avx512bf16(void) { return 0; }
#define AVX2 NONE
#define AVX512 NONE
#define AVX512BF16 NONE
#endif

const pb_kernels* pb_level(int i) {
    switch (i) {
    case 0:
        return &pb_level_generic;
    case 1:
        return has_avx2() ? AVX2 : 0;
    case 2:
        return has_avx512() ? AVX512 : 0;
    case 3:
        return has_avx512bf16() ? AVX512BF16 : 0;
    }
    return 0;
}

const char* pb_level_name(int i) {
    static const char* const names[] = {"generic", "avx2", "avx512", "avx512bf16", 0};
    return names[i];
}
