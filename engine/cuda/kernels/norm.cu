// LayerNorm, AdaLN and RMSNorm: a block a row. Rows of up to 8192 elements stay in registers between the two passes; longer ones are read again.
// Where a mean is subtracted, the first element of the row is subtracted before: sums stay small then, and a mean far from 0 costs no digits.
#include "device.cuh"

#define HELD 2  // pieces of 8 elements that a thread holds

// scaled writes 8 normalised neighbours.
template <class T>
DEV void scaled(const pb_norm& a, const place& p, const float* x, int c, float mean, float rs) {
  int n = min(8, a.r.cols - c), vec = a.r.vec;
  float w[8], b[8], y[8];
#pragma unroll
  for (int i = 0; i < 8; i++) {
    w[i] = 1 - a.w_add;
    b[i] = 0;
  }
  if (a.w.at) load8(w, row_of<float>(a.w, p) + c, n, vec);
  if (a.b.at) load8(b, row_of<float>(a.b, p) + c, n, vec);
#pragma unroll
  for (int i = 0; i < 8; i++) y[i] = (x[i] - mean) * rs * (a.w_add + w[i]) + b[i];
  store8(row_of<T>(a.y, p) + c, y, n, vec);
}

// held normalises a row that fits into the registers of the block. It may be written over.
template <class T>
DEV void held(const pb_norm& a, const place& p, float* scratch) {
  const T* x = row_of<T>(a.x, p);
  int cols = a.r.cols, step = blockDim.x * 8;
  float v[HELD][8], sum = 0, pivot = a.rms ? 0 : widen(x[0]);
#pragma unroll
  for (int j = 0; j < HELD; j++) {
    int c = threadIdx.x * 8 + j * step;
    if (c < cols) load8(v[j], x + c, min(8, cols - c), a.r.vec);
#pragma unroll
    for (int i = 0; i < 8; i++) {
      v[j][i] = c + i < cols ? v[j][i] - pivot : 0;
      sum += v[j][i];
    }
  }
  float mean = a.rms ? 0 : block_sum(sum, scratch) / cols;
  sum = 0;
#pragma unroll
  for (int j = 0; j < HELD; j++) {
    int c = threadIdx.x * 8 + j * step;
#pragma unroll
    for (int i = 0; i < 8; i++)
      if (c + i < cols) sum += (v[j][i] - mean) * (v[j][i] - mean);
  }
  float rs = rsqrtf(block_sum(sum, scratch) / cols + a.eps);
#pragma unroll
  for (int j = 0; j < HELD; j++) {
    int c = threadIdx.x * 8 + j * step;
    if (c < cols) scaled<T>(a, p, v[j], c, mean, rs);
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
    mean = block_sum(sum, scratch) / cols;
  }
  sum = 0;
  for (int c = threadIdx.x * 8; c < cols; c += step) {
    load8(v, x + c, min(8, cols - c), a.r.vec);
#pragma unroll
    for (int i = 0; i < 8; i++)
      if (c + i < cols) sum += (v[i] - pivot - mean) * (v[i] - pivot - mean);
  }
  float rs = rsqrtf(block_sum(sum, scratch) / cols + a.eps);
  __syncthreads();  // x[0] may be written over
  for (int c = threadIdx.x * 8; c < cols; c += step) {
    load8(v, x + c, min(8, cols - c), a.r.vec);
#pragma unroll
    for (int i = 0; i < 8; i++) v[i] -= pivot;
    scaled<T>(a, p, v, c, mean, rs);
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
