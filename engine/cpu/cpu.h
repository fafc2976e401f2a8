// What the Go side calls.
#ifndef PB_CPU_H
#define PB_CPU_H

#include "kernels/kernels.h"

void* pb_map(int64_t bytes);
void pb_unmap(void* p, int64_t bytes);

void pb_run_pack(const pb_kernels*, const pb_pack*);
void pb_run_quantise(const pb_kernels*, const pb_quant*);
void pb_run_gemm(const pb_kernels*, const pb_gemm*);
void pb_run_attn_pack(const pb_kernels*, const pb_attn*);
void pb_run_attn(const pb_kernels*, const pb_attn*);
void pb_run_ew(const pb_kernels*, const pb_ew*);
void pb_run_copy(const pb_kernels*, const pb_copy*);
void pb_run_qk(const pb_kernels*, const pb_qk*);
void pb_run_gather(const pb_kernels*, const pb_gather*);
void pb_run_mean(const pb_kernels*, const pb_mean*);
void pb_run_stats(const pb_kernels*, const pb_stats*);
double pb_run_peak(const pb_kernels*, int64_t);
double pb_run_dot_peak(const pb_kernels*, int64_t); // pb_run_peak where the level has no dot

#endif
