// LayerNorm, AdaLN and RMSNorm: a block a row. Rows in 16-byte pieces of up to 24576 elements stay in registers between the passes; others are read again.
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

// stored8 is store8 to a 16-byte piece, and leaves in v what was stored.
DEV void stored8(float* p, float* v) { store8(p, v, 8, 1); }
DEV void stored8(bf16* p, float* v) {
  piece a;
#pragma unroll
  for (int i = 0; i < 4; i++) {
    a.v[i] = bf16_pair(v[2 * i], v[2 * i + 1]);
    v[2 * i] = pair_low(a.v[i]);
    v[2 * i + 1] = pair_high(a.v[i]);
  }
  *(piece*)p = a;
}

// first_added is element 0 of the row that added writes, as it is stored.
template <class T>
DEV float first_added(const pb_added& s) {
  float x = widen(*block_row<T>(s.a)), y = widen(*block_row<T>(s.b));
  if (s.bias) y += *(const float*)s.bias;
  x = s.gate.at ? __fmaf_rn(y, *block_row<float>(s.gate), x) : x + y;
  return sizeof(T) == 4 ? x : pair_low(bf16_pair(x, 0));
}

// added reads the row of s from element c on, and writes and leaves in v the sums, with the bits of pointwise_row.
template <class T>
DEV void added(float* v, const pb_added& s, int c) {
  float y[8], z[8];
  load8(v, block_row<T>(s.a) + c, 8, 1);
  load8(y, block_row<T>(s.b) + c, 8, 1);
  if (s.bias) {
    load8(z, (const float*)s.bias + c, 8, 1);
#pragma unroll
    for (int i = 0; i < 8; i++) y[i] += z[i];
  }
  if (s.gate.at) {
    load8(z, block_row<float>(s.gate) + c, 8, 1);
#pragma unroll
    for (int i = 0; i < 8; i++) v[i] = __fmaf_rn(y[i], z[i], v[i]);
  } else {
#pragma unroll
    for (int i = 0; i < 8; i++) v[i] += y[i];
  }
  stored8(block_row<T>(s.y) + c, v);
}

// norm_rows is norm_any for rows in 16-byte pieces, with the same bits. If ADDED, it normalises the sum s instead of x. See block_row for first_block.
template <class T, int RMS, int ADDED>
DEV void norm_rows(const pb_norm& a, const pb_added& s, int first_block) {
  const T* x = ADDED ? 0 : block_row<T>(a.x, first_block);
  int first = held_from(), left = a.r.cols - first;
  float v[HELD][8], sum = 0, pivot = 0;
  if (!RMS && ADDED) {
    pivot = first_added<T>(s);
    __syncthreads();  // the sum may be written over its first element
  } else if (!RMS) {
    pivot = widen(x[0]);
  }
#pragma unroll
  for (int j = 0; j < HELD; j++)
    if (j * 256 < left) {
      if (ADDED)
        added<T>(v[j], s, first + j * 256);
      else
        load8(v[j], x + first + j * 256, 8, 1);
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
  T* y = block_row<T>(a.y, first_block) + first;
  const float *w = block_row<float>(a.w, first_block) + first, *b = block_row<float>(a.b, first_block) + first;
#pragma unroll
  for (int j = 0; j < HELD; j++)
    if (j * 256 < left) scaled<T>(a, y + j * 256, w + j * 256, b + j * 256, v[j], 8, rs, 1);
}

// each visits what this thread has of a row of cols elements, up to 8 neighbours at a time: visit(c, n) for elements c to c + n, those of norm_rows in
// its order.
template <class F>
DEV void each(int cols, F visit) {
#pragma unroll 1
  for (int c = held_from(), j = 0; c < cols; j++) {
    visit(c, min(8, cols - c));
    c += j % HELD == HELD - 1 ? (int)blockDim.x * 8 * HELD - (HELD - 1) * 256 : 256;
  }
}

// norm_any normalises a row of any strides and length, which it reads for every pass. It may be written over.
template <class T>
DEV void norm_any(const pb_norm& a, const place& p, float* scratch) {
  const T* x = row_of<T>(a.x, p);
  int cols = a.r.cols;
  float sum = 0, mean = 0, pivot = a.rms ? 0 : widen(x[0]);
  if (!a.rms) {
    each(cols, [&](int c, int n) {
      float v[8];
      load8(v, x + c, n, a.r.vec);
#pragma unroll
      for (int i = 0; i < 8; i++) sum += i < n ? __fsub_rn(v[i], pivot) : 0;
    });
    mean = block_sum(sum, scratch) * a.inverse;
  }
  sum = 0;
  each(cols, [&](int c, int n) {
    float v[8];
    load8(v, x + c, n, a.r.vec);
#pragma unroll
    for (int i = 0; i < 8; i++) {
      float d = __fsub_rn(__fsub_rn(v[i], pivot), mean);
      if (i < n) sum = __fmaf_rn(d, d, sum);
    }
  });
  float rs = rsqrtf(block_sum(sum, scratch) * a.inverse + a.eps);
  __syncthreads();  // x[0] may be written over
  each(cols, [&](int c, int n) {
    float v[8];
    load8(v, x + c, n, a.r.vec);
#pragma unroll
    for (int i = 0; i < 8; i++) v[i] = __fsub_rn(__fsub_rn(v[i], pivot), mean);
    scaled<T>(a, row_of<T>(a.y, p) + c, row_of<float>(a.w, p) + c, row_of<float>(a.b, p) + c, v, n, rs, a.r.vec);
  });
}

template <class T>
DEV void norm(const pb_norm& a) {
  for (int row = blockIdx.x; row < a.r.rows; row += gridDim.x) norm_any<T>(a, locate(a.r, row), (float*)pool);
}

KERNEL(512) pb_norm_bf16(ARGS(pb_norm) a) { norm<bf16>(a); }
KERNEL(512) pb_norm_f32(ARGS(pb_norm) a) { norm<float>(a); }

template <class T>
DEV void norm_rows(const pb_norm& a, int first_block) {
  pb_added none = {};
  a.rms ? norm_rows<T, 1, 0>(a, none, first_block) : norm_rows<T, 0, 0>(a, none, first_block);
}

template <class T>
DEV void norm_added(const pb_norm_added& a) {
  a.norm.rms ? norm_rows<T, 1, 1>(a.norm, a.sum, 0) : norm_rows<T, 0, 1>(a.norm, a.sum, 0);
}

KERNEL(512) pb_norm_rows_bf16(ARGS(pb_norm) a) { norm_rows<bf16>(a, 0); }
KERNEL(512) pb_norm_rows_f32(ARGS(pb_norm) a) { norm_rows<float>(a, 0); }
KERNEL(512) pb_norm_added_bf16(ARGS(pb_norm_added) a) { norm_added<bf16>(a); }
KERNEL(512) pb_norm_added_f32(ARGS(pb_norm_added) a) { norm_added<float>(a); }

template <class T>
DEV void norm_pair(const pb_norm_pair& a) {
  if ((int)blockIdx.x < a.rows)
    norm_added<T>(a.first);
  else
    norm_rows<T>(a.second, a.rows);
}

KERNEL(512) pb_norm_pair_bf16(ARGS(pb_norm_pair) a) { norm_pair<bf16>(a); }
KERNEL(512) pb_norm_pair_f32(ARGS(pb_norm_pair) a) { norm_pair<float>(a); }
