// Pictures, channels last: the rows of a convolution's product, and group norms. Sums of group norms are f64, added in a fixed order.
#include "device.cuh"

template <class T>
DEV void im2col(const pb_im2col& a) {
  int row = a.ky * a.kx * a.c;
  for (pb_i64 i = first_item(); i < (pb_i64)a.count * row; i += item_step()) {
    pb_i64 pixel = a.first + i / row;
    int k = (int)(i % row), c = k % a.c, tap = k / a.c;
    int ox = (int)(pixel % a.ox), oy = (int)(pixel / a.ox % a.oy), b = (int)(pixel / a.ox / a.oy);
    int y = oy * a.stride - a.top + tap / a.kx, x = ox * a.stride - a.left + tap % a.kx;
    T v = {};
    if (y >= 0 && y < a.y && x >= 0 && x < a.x) v = ((const T*)a.src)[b * a.xb + y * a.xy + x * a.xx + c];
    ((T*)a.dst)[i / row * a.ld + k] = v;
  }
}
KERNEL(256) pb_im2col_pixels(ARGS(pb_im2col) a) {
  switch (a.size) {
    case 2: im2col<u16>(a); break;
    case 4: im2col<u32>(a); break;
    default: im2col<piece>(a);
  }
}

DEV double lanes_sum64(double v) {
  for (int m = 16; m > 0; m >>= 1) v += __shfl_xor_sync(~0u, v, m);
  return v;
}

// A block sums one slice of the pixels of one group: grid (slices, b * groups).
template <class T>
DEV void group_part(const pb_group& a) {
  int b = blockIdx.y / a.groups, g = blockIdx.y % a.groups, size = a.c / a.groups;
  pb_i64 pixels = (pb_i64)a.height * a.width;
  pb_i64 lo = pixels * blockIdx.x / a.slices * size, hi = pixels * (blockIdx.x + 1) / a.slices * size;
  double sum = 0, squares = 0;
  for (pb_i64 i = lo + threadIdx.x; i < hi; i += blockDim.x) {
    int pixel = (int)(i / size), c = (int)(i % size);
    double v = widen(((const T*)a.x)[b * a.xb + pixel / a.width * a.xy + pixel % a.width * a.xx + g * size + c]);
    sum += v;
    squares += v * v;
  }
  sum = lanes_sum64(sum);
  squares = lanes_sum64(squares);
  double* scratch = (double*)pool;
  int warp = threadIdx.x >> 5;
  if ((threadIdx.x & 31) == 0) {
    scratch[2 * warp] = sum;
    scratch[2 * warp + 1] = squares;
  }
  __syncthreads();
  if (threadIdx.x < 2) {
    double total = 0;
    for (int i = 0; i < (int)(blockDim.x >> 5); i++) total += scratch[2 * i + threadIdx.x];
    ((double*)a.part)[((pb_i64)blockIdx.y * a.slices + blockIdx.x) * 2 + threadIdx.x] = total;
  }
}
KERNEL(256) pb_group_part_bf16(ARGS(pb_group) a) { group_part<bf16>(a); }
KERNEL(256) pb_group_part_f32(ARGS(pb_group) a) { group_part<float>(a); }

KERNEL(256) pb_group_sum(ARGS(pb_group) a) {
  for (pb_i64 i = first_item(); i < 2 * a.batch * a.groups; i += item_step()) {
    pb_i64 item = i / 2, which = i % 2;
    double total = 0;
    for (int s = 0; s < a.slices; s++) total += ((const double*)a.part)[(item * a.slices + s) * 2 + which];
    ((double*)a.stats)[item / a.groups * a.sb + item % a.groups * a.sg + which] = total;
  }
}

// The divisions of f64 are many instructions on most GPUs, so they are done once a group.
KERNEL(256) pb_group_factors(ARGS(pb_group) a) {
  for (pb_i64 i = first_item(); i < a.batch * a.groups; i += item_step()) {
    const double* s = (const double*)a.stats + i / a.groups * a.sb + i % a.groups * a.sg;
    double mean = s[0] / a.count, var = s[1] / a.count - mean * mean;
    float* f = (float*)a.part + 2 * i;
    f[0] = (float)mean;
    f[1] = rsqrtf((float)(var < 0 ? 0 : var) + a.eps);  // rounding may push it below 0; NaN stays
  }
}

template <class T>
DEV void group_apply(const pb_group& a) {
  int pieces = (a.c + 7) / 8, size = a.c / a.groups;
  pb_i64 count = (pb_i64)a.batch * a.height * a.width * pieces;
  for (pb_i64 item = first_item(); item < count; item += item_step()) {
    int c = (int)(item % pieces) * 8, n = min(8, a.c - c);
    pb_i64 pixel = item / pieces;
    int x = (int)(pixel % a.width), y = (int)(pixel / a.width % a.height), b = (int)(pixel / a.width / a.height);
    float v[8], w[8], bias[8], mean = 0, rs = 0;
    load8(v, (const T*)a.x + b * a.xb + y * a.xy + x * a.xx + c, n, a.vec);
    load8(w, (const float*)a.w + c, n, a.vec);
    load8(bias, (const float*)a.b + c, n, a.vec);
    int group = -1;
#pragma unroll
    for (int i = 0; i < 8; i++) {
      if (i < n && (c + i) / size != group) {
        group = (c + i) / size;
        const float* f = (const float*)a.part + 2 * (b * a.groups + group);
        mean = f[0];
        rs = f[1];
      }
      v[i] = activate(__fmaf_rn(__fmul_rn(__fsub_rn(v[i], mean), rs), w[i], bias[i]), a.act);
    }
    store8((T*)a.y + b * a.yb + y * a.yy + x * a.yx + c, v, n, a.vec);
  }
}
KERNEL(256) pb_group_apply_bf16(ARGS(pb_group) a) { group_apply<bf16>(a); }
KERNEL(256) pb_group_apply_f32(ARGS(pb_group) a) { group_apply<float>(a); }

// A block of the kernels of whole pixels takes one slice of the pixels of an item, grid (slices, batch): a thread always the same 8 channels, in 16-byte
// pieces, of every lanes-th pixel. pixel_walk is the next one of those, without a division.
struct pixel_walk {
  int at, end, lanes, piece, y, x, dy, dx;
};
DEV pixel_walk first_pixel(const pb_group& a) {
  pixel_walk w;
  int pieces = a.c / 8, lane = threadIdx.x / pieces;
  w.lanes = blockDim.x / pieces;
  w.piece = threadIdx.x - lane * pieces;
  pb_i64 pixels = (pb_i64)a.height * a.width;
  w.at = (int)(pixels * blockIdx.x / a.slices) + lane;
  w.end = lane < w.lanes ? (int)(pixels * (blockIdx.x + 1) / a.slices) : 0;
  w.y = w.at / a.width;
  w.x = w.at - w.y * a.width;
  w.dy = w.lanes / a.width;
  w.dx = w.lanes - w.dy * a.width;
  return w;
}
DEV void next_pixel(const pb_group& a, pixel_walk& w) {
  w.at += w.lanes;
  w.y += w.dy;
  w.x += w.dx;
  if (w.x >= a.width) {
    w.x -= a.width;
    w.y++;
  }
}

// Sums of all groups of a slice; shared memory holds those of every thread's channels.
template <class T>
DEV void group_part_rows(const pb_group& a) {
  pixel_walk w = first_pixel(a);
  const T* src = (const T*)a.x + blockIdx.y * a.xb + w.piece * 8;
  double sum[8] = {}, squares[8] = {};
  int lane = threadIdx.x / (a.c / 8);
  for (; w.at < w.end; next_pixel(a, w)) {
    float v[8];
    load8(v, src + (w.y * (int)a.xy + w.x * (int)a.xx), 8, 1);
#pragma unroll
    for (int i = 0; i < 8; i++) {
      double d = v[i];
      sum[i] += d;
      squares[i] += d * d;
    }
  }
  double* scratch = (double*)pool;
  if (lane < w.lanes) {
#pragma unroll
    for (int i = 0; i < 8; i++) {
      scratch[2 * (lane * a.c + w.piece * 8 + i)] = sum[i];
      scratch[2 * (lane * a.c + w.piece * 8 + i) + 1] = squares[i];
    }
  }
  __syncthreads();
  int size = a.c / a.groups;
  for (int i = threadIdx.x; i < 2 * a.groups; i += blockDim.x) {
    const double* from = scratch + i / 2 * size * 2 + i % 2;
    double total = 0;
    for (int l = 0; l < w.lanes; l++)
      for (int c = 0; c < size; c++) total += from[2 * (l * a.c + c)];
    ((double*)a.part)[(((pb_i64)blockIdx.y * a.groups + i / 2) * a.slices + blockIdx.x) * 2 + i % 2] = total;
  }
}
KERNEL(256) pb_group_part_rows_bf16(ARGS(pb_group) a) { group_part_rows<bf16>(a); }
KERNEL(256) pb_group_part_rows_f32(ARGS(pb_group) a) { group_part_rows<float>(a); }

template <class T, int ACT>
DEV void group_apply_row(const pb_group& a) {
  pixel_walk p = first_pixel(a);
  int c = p.piece * 8, size = a.c / a.groups;
  const T* src = (const T*)a.x + blockIdx.y * a.xb + c;
  T* dst = (T*)a.y + blockIdx.y * a.yb + c;
  float w[8], bias[8], mean[8], rs[8];
  load8(w, (const float*)a.w + c, 8, 1);
  load8(bias, (const float*)a.b + c, 8, 1);
#pragma unroll
  for (int i = 0; i < 8; i++) {
    const float* f = (const float*)a.part + 2 * (blockIdx.y * a.groups + (c + i) / size);
    mean[i] = f[0];
    rs[i] = f[1];
  }
  for (; p.at < p.end; next_pixel(a, p)) {
    float v[8];
    load8(v, src + (p.y * (int)a.xy + p.x * (int)a.xx), 8, 1);
#pragma unroll
    for (int i = 0; i < 8; i++)
      v[i] = activate(__fmaf_rn(__fmul_rn(__fsub_rn(v[i], mean[i]), rs[i]), w[i], bias[i]), ACT);
    store8(dst + (p.y * (int)a.yy + p.x * (int)a.yx), v, 8, 1);
  }
}
template <class T>
DEV void group_apply_rows(const pb_group& a) {
  a.act == PB_SILU ? group_apply_row<T, PB_SILU>(a) : group_apply_row<T, PB_NONE>(a);
}
KERNEL(256) pb_group_apply_rows_bf16(ARGS(pb_group) a) { group_apply_rows<bf16>(a); }
KERNEL(256) pb_group_apply_rows_f32(ARGS(pb_group) a) { group_apply_rows<float>(a); }
