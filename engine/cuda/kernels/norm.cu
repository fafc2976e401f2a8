// LayerNorm, AdaLN and RMSNorm: a block a row. Rows of up to 24576 elements stay in registers between the two passes; longer ones are read again.
// Where a mean is subtracted, the first element of the row is subtracted before: sums stay small then, and a mean far from 0 costs no digits.
#include "device.cuh"

#define HELD 6  // pieces of 8 elements that a thread holds, 256 elements apart: those of a warp are neighbours

// held_from is the first element that a thread holds of a row.
DEV int held_from() { return (threadIdx.x >> 5) * (HELD * 256) + (threadIdx.x & 31) * 8; }

// scaled writes n (up to 8) neighbours x, less their mean, with weights at_w and at_b.
template <class T>
DEV void scaled(const pb_norm& a, T* to, const float* at_w, const float* at_b, const float* x, int n, float rs, int vec) {
  float w[8], b[8], y[8];
#pragma unroll
  for (int i = 0; i < 8; i++) {
    w[i] = 1 - a.w_add;
    b[i] = 0;
  }
  if (a.w.at) load8(w, at_w, n, vec);
  if (a.b.at) load8(b, at_b, n, vec);
#pragma unroll
  for (int i = 0; i < 8; i++) y[i] = __fmaf_rn(__fmul_rn(x[i], rs), __fadd_rn(a.w_add, w[i]), b[i]);
  store8(to, y, n, vec);
}

// row_sum is block_sum for a single use of scratch: no barrier in front.
DEV float row_sum(float v, float* scratch) {
  v = lanes_sum(v, 32);
  int warps = blockDim.x >> 5;
  if (warps == 1) return v;
  if ((threadIdx.x & 31) == 0) scratch[threadIdx.x >> 5] = v;
  __syncthreads();
  v = 0;
#pragma unroll 1
  for (int i = 0; i < warps; i++) v += scratch[i];
  return v;
}

// norm_rows is held for rows in 16-byte pieces, with the same bits.
template <class T, int RMS>
DEV void norm_rows(const pb_norm& a) {
  const T* x = block_row<T>(a.x);
  int first = held_from(), left = a.r.cols - first;
  float v[HELD][8], sum = 0, pivot = RMS ? 0 : widen(x[0]);
  x += first;
#pragma unroll
  for (int j = 0; j < HELD; j++)
    if (j * 256 < left) {
      load8(v[j], x + j * 256, 8, 1);
#pragma unroll
      for (int i = 0; i < 8 && !RMS; i++) {
        v[j][i] = __fsub_rn(v[j][i], pivot);
        sum += v[j][i];
      }
    }
  float mean = RMS ? 0 : row_sum(sum, (float*)pool) * a.inverse;
  sum = 0;
#pragma unroll
  for (int j = 0; j < HELD; j++)
    if (j * 256 < left) {
#pragma unroll
      for (int i = 0; i < 8; i++) {
        if (!RMS) v[j][i] = __fsub_rn(v[j][i], mean);
        sum = __fmaf_rn(v[j][i], v[j][i], sum);
      }
    }
  float rs = rsqrtf(row_sum(sum, (float*)pool + 16) * a.inverse + a.eps);
  T* y = block_row<T>(a.y) + first;
  const float *w = block_row<float>(a.w) + first, *b = block_row<float>(a.b) + first;
#pragma unroll
  for (int j = 0; j < HELD; j++)
    if (j * 256 < left) scaled<T>(a, y + j * 256, w + j * 256, b + j * 256, v[j], 8, rs, 1);
}

// held normalises a row that fits into the registers of the block. It may be written over.
template <class T>
DEV void held(const pb_norm& a, const place& p, float* scratch) {
  const T* x = row_of<T>(a.x, p);
  int cols = a.r.cols;
  float v[HELD][8], sum = 0, pivot = a.rms ? 0 : widen(x[0]);
#pragma unroll
  for (int j = 0; j < HELD; j++) {
    int c = held_from() + j * 256;
    if (c < cols) load8(v[j], x + c, min(8, cols - c), a.r.vec);
#pragma unroll
    for (int i = 0; i < 8; i++) {
      v[j][i] = c + i < cols ? v[j][i] - pivot : 0;
      sum += v[j][i];
    }
  }
  float mean = a.rms ? 0 : block_sum(sum, scratch) * a.inverse;
  sum = 0;
#pragma unroll
  for (int j = 0; j < HELD; j++) {
    int c = held_from() + j * 256;
#pragma unroll
    for (int i = 0; i < 8; i++)
      if (c + i < cols) sum = __fmaf_rn(v[j][i] - mean, v[j][i] - mean, sum);
  }
  float rs = rsqrtf(block_sum(sum, scratch) * a.inverse + a.eps);
#pragma unroll
  for (int j = 0; j < HELD; j++) {
    int c = held_from() + j * 256;
    if (c >= cols) continue;
#pragma unroll
    for (int i = 0; i < 8; i++) v[j][i] -= mean;
    scaled<T>(a, row_of<T>(a.y, p) + c, row_of<float>(a.w, p) + c, row_of<float>(a.b, p) + c, v[j], min(8, cols - c), rs, a.r.vec);
  }
}

// reread normalises a row of any length.
template <class T>
DEV void reread(const pb_norm& a, const place& p, float* scratch) {
  const T* x = row_of<T>(a.x, p);
  int cols = a.r.cols, step = blockDim.x * 8;
  float v[8], mean = 0, sum = 0, pivot = a.rms ? 0 : widen(x[0]);
  if (!a.rms) {
    for (int c = threadIdx.x * 8; c < cols; c += step) {
      load8(v, x + c, min(8, cols - c), a.r.vec);
#pragma unroll
      for (int i = 0; i < 8; i++)
        if (c + i < cols) sum += v[i] - pivot;
    }
    mean = block_sum(sum, scratch) * a.inverse;
  }
  sum = 0;
  for (int c = threadIdx.x * 8; c < cols; c += step) {
    load8(v, x + c, min(8, cols - c), a.r.vec);
#pragma unroll
    for (int i = 0; i < 8; i++)
      if (c + i < cols) sum += (v[i] - pivot - mean) * (v[i] - pivot - mean);
  }
  float rs = rsqrtf(block_sum(sum, scratch) * a.inverse + a.eps);
  __syncthreads();  // x[0] may be written over
  for (int c = threadIdx.x * 8; c < cols; c += step) {
    load8(v, x + c, min(8, cols - c), a.r.vec);
#pragma unroll
    for (int i = 0; i < 8; i++) v[i] = v[i] - pivot - mean;
    scaled<T>(a, row_of<T>(a.y, p) + c, row_of<float>(a.w, p) + c, row_of<float>(a.b, p) + c, v, min(8, cols - c), rs, a.r.vec);
  }
}

template <class T>
DEV void norm(const pb_norm& a) {
  float* scratch = (float*)pool;
  for (int row = blockIdx.x; row < a.r.rows; row += gridDim.x) {
    place p = locate(a.r, row);
    if (a.r.cols <= (int)blockDim.x * 8 * HELD)
      held<T>(a, p, scratch);
    else
      reread<T>(a, p, scratch);
  }
}

KERNEL(512) pb_norm_bf16(ARGS(pb_norm) a) { norm<bf16>(a); }
KERNEL(512) pb_norm_f32(ARGS(pb_norm) a) { norm<float>(a); }

KERNEL(512) pb_norm_rows_bf16(ARGS(pb_norm) a) { a.rms ? norm_rows<bf16, 1>(a) : norm_rows<bf16, 0>(a); }
KERNEL(512) pb_norm_rows_f32(ARGS(pb_norm) a) { a.rms ? norm_rows<float, 1>(a) : norm_rows<float, 0>(a); }
