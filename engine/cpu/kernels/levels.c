// Which levels there are and which of them this CPU runs.
#define _DEFAULT_SOURCE
#include "kernels.h"

#define NONE ((const pb_kernels*)0)

#if defined(__x86_64__) && defined(__GNUC__)
#include <cpuid.h>
static int has_avx2(void) {
    unsigned a, b, c, d; // clang 14 does not know "f16c" as a name
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
           __get_cpuid(1, &a, &b, &c, &d) && (c & bit_F16C);
}
static int has_avx512(void) {
    return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
}
static int has_avx512bf16(void) {
    return has_avx512() && __builtin_cpu_supports("avx512bf16") &&
           __builtin_cpu_supports("avx512vnni");
}
#ifdef PB_WITH_AMX
#include <sys/syscall.h>
#include <unistd.h>
// has_amx also asks Linux for the right of this process to use tiles
// (Documentation/arch/x86/xstate.rst).
static int has_amx(void) {
    enum { ARCH_REQ_XCOMP_PERM = 0x1023, TILE_DATA = 18 };
    const unsigned bf16 = 1u << 22, tile = 1u << 24, int8 = 1u << 25, all = bf16 | tile | int8;
    unsigned a, b, c, d;
    return has_avx512bf16() && __get_cpuid_count(7, 0, &a, &b, &c, &d) && (d & all) == all &&
           syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, TILE_DATA) == 0;
}
#define AMX &pb_level_amx
#else
static int has_amx(void) { return 0; }
#define AMX NONE
#endif
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
static int has_amx(void) { return 0; }
#define AMX NONE
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
    case 4:
        return has_amx() ? AMX : 0;
    }
    return 0;
}

const char* pb_level_name(int i) {
    static const char* const names[] = {"generic", "avx2", "avx512", "avx512bf16", "amx", 0};
    return names[i];
}
