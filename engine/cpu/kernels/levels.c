// Which levels there are and which of them this CPU runs.
#define _DEFAULT_SOURCE
#include "kernels.h"

#define NONE ((const pb_kernels*)0)

#if defined(__x86_64__) && defined(__GNUC__)
#include <cpuid.h>
// Asked of the processor itself: __builtin_cpu_supports is answered by the compiler's library, and
// that of zig cc says 0 to all.
typedef struct {
    unsigned a, b, c, d;
} leaf;

static leaf cpuid(unsigned number, unsigned part) {
    leaf l = {0, 0, 0, 0};
    __get_cpuid_count(number, part, &l.a, &l.b, &l.c, &l.d); // 0 where there is no such leaf
    return l;
}

// os_saves returns whether the system keeps these registers of a thread (bits of XCR0).
static int os_saves(unsigned registers) {
    const unsigned osxsave = 1u << 27;
    unsigned low, high;
    if (!(cpuid(1, 0).c & osxsave))
        return 0;
    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return (low & registers) == registers;
}

static int has_avx2(void) {
    const unsigned fma = 1u << 12, avx = 1u << 28, f16c = 1u << 29, all = fma | avx | f16c;
    const unsigned avx2 = 1u << 5, ymm = 0x6;
    return os_saves(ymm) && (cpuid(1, 0).c & all) == all && (cpuid(7, 0).b & avx2);
}
static int has_avx512(void) {
    const unsigned f = 1u << 16, dq = 1u << 17, bw = 1u << 30, vl = 1u << 31, all = f | dq | bw | vl;
    const unsigned zmm = 0xe6;
    return has_avx2() && os_saves(zmm) && (cpuid(7, 0).b & all) == all;
}
static int has_avx512bf16(void) {
    const unsigned vnni = 1u << 11, bf16 = 1u << 5;
    return has_avx512() && (cpuid(7, 0).c & vnni) && cpuid(7, 0).a >= 1 && (cpuid(7, 1).a & bf16);
}
#ifdef PB_WITH_AMX
#include <sys/syscall.h>
#include <unistd.h>
// has_amx also asks Linux for the right of this process to use tiles
// (Documentation/arch/x86/xstate.rst).
static int has_amx(void) {
    enum { ARCH_REQ_XCOMP_PERM = 0x1023, TILE_DATA = 18 };
    const unsigned bf16 = 1u << 22, tile = 1u << 24, int8 = 1u << 25, all = bf16 | tile | int8;
    return has_avx512bf16() && (cpuid(7, 0).d & all) == all &&
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
