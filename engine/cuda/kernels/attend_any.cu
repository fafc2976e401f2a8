// Attention of any type, layout, mask and head of up to 512 elements, in f32; the softmax of attention by two products; and the merge of two partial
// results.
// A warp has QW queries of a head. 32 keys at a time lie in shared memory, then their values in the same place: a lane scores one key for each of its
// warp's queries, and sums the elements lane, lane + 32, .. of the values.
#include "device.cuh"

#define WARPS 8
#define TILE 32

// fill widens rows [first, first + 32) of [.., d] to f32, rows apart by ld.
template <class T>
DEV void fill(float* s, int ld, const T* g, pb_i64 stride, int first, int count, int d) {
  for (int i = threadIdx.x; i < TILE * d; i += WARPS * 32) {
    int r = i / d, c = i % d;
    s[r * ld + c] = first + r < count ? widen(g[(first + r) * stride + c]) : 0;
  }
}

// PARTS times 32 is the largest head.
template <class T, int PARTS, int QW>
DEV void attend(const pb_attend& a) {
  int ld = a.d + 1, w = threadIdx.x >> 5, l = threadIdx.x & 31, b = blockIdx.z, h = blockIdx.y, q0 = blockIdx.x * WARPS * QW;
  float *sq = (float*)pool + w * QW * a.d, *sp = (float*)pool + WARPS * QW * a.d + w * QW * TILE, *st = (float*)pool + WARPS * QW * (a.d + TILE);
  const T* q = (const T*)a.q + b * a.qs[0] + h * a.qs[2];
  const T* k = (const T*)a.k + b * a.ks[0] + h * a.ks[2];
  const T* v = (const T*)a.v + b * a.vs[0] + h * a.vs[2];
  int lk = a.lens ? a.key_len[b] : a.lk, reach = a.causal ? min(lk, q0 + WARPS * QW) : lk;
  float o[QW][PARTS] = {}, top[QW], sum[QW];
#pragma unroll
  for (int i = 0; i < QW; i++) {
    int query = q0 + w * QW + i;
    top[i] = -INFINITY;
    sum[i] = 0;
    for (int c = l; c < a.d; c += 32) sq[i * a.d + c] = query < a.lq ? widen(q[query * a.qs[1] + c]) : 0;
  }
  for (int j = 0; j < reach; j += TILE) {
    __syncthreads();
    fill(st, ld, k, a.ks[1], j, lk, a.d);
    __syncthreads();
    float s[QW] = {};
    for (int c = 0; c < a.d; c++) {
      float x = st[l * ld + c];
#pragma unroll
      for (int i = 0; i < QW; i++) s[i] = fmaf(sq[i * a.d + c], x, s[i]);
    }
#pragma unroll
    for (int i = 0; i < QW; i++) {
      int query = q0 + w * QW + i, key = j + l, seen = query < a.lq && key < lk && !(a.causal && key > query);
      s[i] = seen ? s[i] * a.scale : -INFINITY;
      if (a.bias && seen) s[i] += ((const float*)a.bias)[h * a.bias_s[0] + query * a.bias_s[1] + key];
      float m = fmaxf(top[i], lanes_max(s[i], 32));
      float from = m == -INFINITY ? 0 : m;  // no key so far: every probability is 0
      float p = expf(s[i] - from), f = expf(top[i] - from);
      top[i] = m;
      sum[i] = sum[i] * f + lanes_sum(p, 32);
      sp[i * TILE + l] = p;
#pragma unroll
      for (int c = 0; c < PARTS; c++) o[i][c] *= f;
    }
    __syncthreads();
    fill(st, ld, v, a.vs[1], j, lk, a.d);
    __syncthreads();
    for (int r = 0; r < TILE; r++)
#pragma unroll
      for (int c = 0; c < PARTS; c++) {
        float x = l + 32 * c < a.d ? st[r * ld + l + 32 * c] : 0;
#pragma unroll
        for (int i = 0; i < QW; i++) o[i][c] = fmaf(sp[i * TILE + r], x, o[i][c]);
      }
  }
#pragma unroll
  for (int i = 0; i < QW; i++) {
    int query = q0 + w * QW + i;
    if (query >= a.lq) continue;
    T* out = (T*)a.o + b * a.os[0] + query * a.os[1] + h * a.os[2];
#pragma unroll
    for (int c = 0; c < PARTS; c++)
      if (l + 32 * c < a.d) put(out + l + 32 * c, sum[i] == 0 ? 0 : o[i][c] / sum[i]);
    if (a.lse && l == 0) ((float*)a.lse)[b * a.lse_s[0] + h * a.lse_s[1] + query] = sum[i] == 0 ? -INFINITY : top[i] + logf(sum[i]);
  }
}
KERNEL(256) pb_attend_any_bf16(ARGS(pb_attend) a) { attend<bf16, 4, 4>(a); }
KERNEL(256) pb_attend_any_f32(ARGS(pb_attend) a) { attend<float, 4, 4>(a); }
KERNEL(256) pb_attend_wide_bf16(ARGS(pb_attend) a) { attend<bf16, 16, 2>(a); }
KERNEL(256) pb_attend_wide_f32(ARGS(pb_attend) a) { attend<float, 16, 2>(a); }

// block_max is block_sum for maxima.
DEV float block_max(float v, float* scratch) {
  v = lanes_max(v, 32);
  __syncthreads();
  if ((threadIdx.x & 31) == 0) scratch[threadIdx.x >> 5] = v;
  __syncthreads();
  for (int i = 0; i < (int)(blockDim.x >> 5); i++) v = fmaxf(v, scratch[i]);
  return v;
}

// softmax: a block a row, read three times.
KERNEL(512) pb_softmax_rows(ARGS(pb_softmax) a) {
  float* scratch = (float*)pool;
  for (int row = blockIdx.x; row < a.rows; row += gridDim.x) {
    const float* s = (const float*)a.s + row * a.s_ld;
    bf16* p = (bf16*)a.p + row * a.p_ld;
    float top = -INFINITY, sum = 0;
    for (int c = threadIdx.x; c < a.valid; c += blockDim.x) top = fmaxf(top, s[c] * a.scale);
    top = block_max(top, scratch);
    float from = top == -INFINITY ? 0 : top;
    for (int c = threadIdx.x; c < a.valid; c += blockDim.x) sum += expf(s[c] * a.scale - from);
    sum = block_sum(sum, scratch);
    float inverse = sum == 0 ? 0 : 1 / sum;
    for (int c = threadIdx.x; c < a.cols; c += blockDim.x) put(p + c, c < a.valid ? expf(s[c] * a.scale - from) * inverse : 0);
    if (a.lse && threadIdx.x == 0) ((float*)a.lse)[row] = sum == 0 ? -INFINITY : top + logf(sum);
  }
}

// merge: with s = exp(lse), s2 = exp(lse2): o = (s o + s2 o2) / (s + s2), lse = log(s + s2). A warp a row.
template <class T>
DEV void merge(const pb_merge& a) {
  int lane = threadIdx.x & 31, rows = a.batch * a.l * a.h;
  int warp = (int)(first_item() >> 5), warps = (int)(item_step() >> 5);
  for (int row = warp; row < rows; row += warps) {
    int h = row % a.h, l = row / a.h % a.l, b = row / a.h / a.l;
    float *lse = (float*)a.lse + b * a.lse_s[0] + h * a.lse_s[1] + l, *lse2 = (float*)a.lse2 + b * a.lse2_s[0] + h * a.lse2_s[1] + l;
    float s = *lse, s2 = *lse2;
    __syncwarp();  // lane 0 writes lse below
    if (s2 == -INFINITY) continue;  // nothing to fold in, also when both are empty
    float top = fmaxf(s, s2), e = expf(s - top), e2 = expf(s2 - top), t = e + e2;
    T* o = (T*)a.o + b * a.os[0] + l * a.os[1] + h * a.os[2];
    const T* o2 = (const T*)a.o2 + b * a.o2s[0] + l * a.o2s[1] + h * a.o2s[2];
    for (int c = lane * 8; c < a.d; c += 256) {
      float x[8], y[8];
      int n = min(8, a.d - c);
      load8(x, o + c, n, a.vec);
      load8(y, o2 + c, n, a.vec);
#pragma unroll
      for (int i = 0; i < 8; i++) x[i] = (e * x[i] + e2 * y[i]) / t;
      store8(o + c, x, n, a.vec);
    }
    if (lane == 0) *lse = top + logf(t);
  }
}
KERNEL(256) pb_merge_bf16(ARGS(pb_merge) a) { merge<bf16>(a); }
KERNEL(256) pb_merge_f32(ARGS(pb_merge) a) { merge<float>(a); }
