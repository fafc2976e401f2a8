// What the Go side calls: choice of the level, memory, and one entry point per kernel.
#define _DEFAULT_SOURCE
#include <sys/mman.h>
#include "kernels.h"

#if defined(__x86_64__) && defined(__GNUC__)
static int has_avx2(void) {
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
           __builtin_cpu_supports("f16c");
}
static int has_avx512(void) {
    return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
}
static int has_avx512bf16(void) { return has_avx512() && __builtin_cpu_supports("avx512bf16"); }
#define AVX2 &pb_level_avx2
#define AVX512 &pb_level_avx512
#define AVX512BF16 &pb_level_avx512bf16
#else
static int has_avx2(void) { return 0; }
static int has_avx512(void) { return 0; }
static int has_avx512bf16(void) { return 0; }
#define AVX2 0
#define AVX512 0
#define AVX512BF16 0
#endif

const pb_kernels* pb_level(int i) {
    switch (i) {
    case 0:
        return &pb_level_portable512;
    case 1:
        return &pb_level_portable512bf16;
    case 2:
        return &pb_level_generic;
    case 3:
        return has_avx2() ? AVX2 : 0;
    case 4:
        return has_avx512() ? AVX512 : 0;
    case 5:
        return has_avx512bf16() ? AVX512BF16 : 0;
    }
    return 0;
}

const char* pb_level_name(int i) {
    static const char* const names[] = {"portable512", "portable512bf16", "generic", "avx2",
                                        "avx512",      "avx512bf16",      0};
    return names[i];
}

void* pb_map(int64_t bytes) {
    void* p = mmap(0, (size_t)bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) return 0;
#ifdef MADV_HUGEPAGE
    if (bytes >= 4 << 20)
        madvise(p, (size_t)bytes, MADV_HUGEPAGE); // a hint, its failure is harmless
#endif
    return p;
}

void pb_unmap(void* p, int64_t bytes) { munmap(p, (size_t)bytes); }

void pb_run_pack(const pb_kernels* k, const pb_pack* a) { k->pack(a); }
void pb_run_gemm(const pb_kernels* k, const pb_gemm* a) { k->gemm(a); }
void pb_run_attn_pack(const pb_kernels* k, const pb_attn* a) { k->attn_pack(a); }
void pb_run_attn(const pb_kernels* k, const pb_attn* a) { k->attn(a); }
void pb_run_ew(const pb_kernels* k, const pb_ew* a) { k->ew(a); }
void pb_run_copy(const pb_kernels* k, const pb_copy* a) { k->copy(a); }
void pb_run_qk(const pb_kernels* k, const pb_qk* a) { k->qk(a); }
void pb_run_gather(const pb_kernels* k, const pb_gather* a) { k->gather(a); }
void pb_run_mean(const pb_kernels* k, const pb_mean* a) { k->mean(a); }
void pb_run_stats(const pb_kernels* k, const pb_stats* a) { k->stats(a); }
double pb_run_peak(const pb_kernels* k, int64_t n) { return k->peak(n); }
double pb_run_dot_peak(const pb_kernels* k, int64_t n) {
    return k->dot ? k->dot_peak(n) : k->peak(n);
}
