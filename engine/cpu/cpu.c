// What the Go side calls: memory, and one entry point per kernel.
#define _DEFAULT_SOURCE
#include <sys/mman.h>
#include "cpu.h"

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
void pb_run_quantise(const pb_kernels* k, const pb_quant* a) { k->quantise(a); }
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
