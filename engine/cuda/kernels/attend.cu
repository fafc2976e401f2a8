// Attention of bf16 on the tensor cores, in one pass over the keys (FlashAttention-2, arXiv:2307.08691, algorithm 1): a block has 128 queries of one
// head, a warp 16 of them, and 64 keys and values at a time pass through two buffers of shared memory by asynchronous copies. The sums are f32; the
// probabilities are rounded to bf16 for the second product. Rows must start at multiples of 16 bytes and heads have a multiple of 8 elements.
//
// D is the head padded with zeros. MASKED kernels also know causal masks, biases and keys of each item; the others see all lk keys.
#include "device.cuh"

#define QUERIES 128
#define KEYS 64
#define LANES 256

template <int D>
struct attention {
  static const int chunks = D / 8;  // 16-byte pieces a row
  // Rows of 64 and 128 elements exchange pieces by the row, so that 8 rows of one piece lie in different banks; others get a piece of padding.
  static const int swizzle = D == 64 || D == 128, row = D + (swizzle ? 0 : 8);

  DEV static int at(int r, int c) { return r * row + (swizzle ? (c ^ (r & 7)) : c) * 8; }

  // load copies rows [first, first + n) of which there are count; what lies behind them or behind d becomes 0.
  DEV static void load(bf16* s, const bf16* g, pb_i64 ld, int first, int count, int n, int d) {
    for (int i = threadIdx.x; i < n * chunks; i += LANES) {
      int r = i / chunks, c = i % chunks, bytes = first + r < count && c * 8 < d ? 16 : 0;
      copy16(shared_address(s + at(r, c)), g + (bytes ? (first + r) * ld + c * 8 : 0), bytes);
    }
  }

  template <int MASKED>
  DEV static void run(const pb_attend& a) {
    bf16 *sq = (bf16*)pool, *sk = sq + QUERIES * row, *sv = sk + 2 * KEYS * row;
    int b = blockIdx.z, h = blockIdx.y, m0 = blockIdx.x * QUERIES, w = threadIdx.x >> 5, l = threadIdx.x & 31;
    const bf16* q = (const bf16*)a.q + b * a.qs[0] + h * a.qs[2];
    const bf16* k = (const bf16*)a.k + b * a.ks[0] + h * a.ks[2];
    const bf16* v = (const bf16*)a.v + b * a.vs[0] + h * a.vs[2];
    int lk = MASKED && a.lens ? a.key_len[b] : a.lk;
    int reach = MASKED && a.causal ? min(lk, m0 + QUERIES) : lk;  // keys that any query of the block sees
    int blocks = (reach + KEYS - 1) / KEYS;
    // Scores in powers of 2. Where a bias is added the scores are scaled before; else in the exponent, which is for nothing then.
    float log2 = a.scale * 1.4426950409f, before = MASKED ? log2 : 1, scale = MASKED ? 1 : log2;

    load(sq, q, a.qs[1], m0, a.lq, QUERIES, a.d);
    load(sk, k, a.ks[1], 0, lk, KEYS, a.d);
    copy_commit();
    load(sv, v, a.vs[1], 0, lk, KEYS, a.d);
    copy_commit();
    float o[D / 8][4], top[2] = {-1e30f, -1e30f}, sum[2] = {0, 0};
#pragma unroll
    for (int i = 0; i < D / 8; i++) o[i][0] = o[i][1] = o[i][2] = o[i][3] = 0;

    // Two barriers a round: behind the first nobody reads the values of the round before, behind the second nobody reads the keys of this one.
    for (int j = 0; j < blocks; j++) {
      int s = j & 1;
      if (j + 1 < blocks) load(sk + (s ^ 1) * KEYS * row, k, a.ks[1], (j + 1) * KEYS, lk, KEYS, a.d);
      copy_commit();
      copy_wait<2>();  // queries and these keys are there
      __syncthreads();
      float c[KEYS / 8][4];
#pragma unroll
      for (int i = 0; i < KEYS / 8; i++) c[i][0] = c[i][1] = c[i][2] = c[i][3] = 0;
#pragma unroll
      for (int kk = 0; kk < D / 16; kk++) {
        u32 fq[4], fk[4];
        ldm4(fq, shared_address(sq + at(w * 16 + (l & 15), kk * 2 + (l >> 4))));
#pragma unroll
        for (int n = 0; n < KEYS / 16; n++) {
          ldm4(fk, shared_address(sk + s * KEYS * row + at(n * 16 + (l & 7) + (l >> 4 << 3), kk * 2 + (l >> 3 & 1))));
          mma(c[2 * n], fq, fk);
          mma(c[2 * n + 1], fq, fk + 2);
        }
      }
      if (MASKED || (j + 1) * KEYS > lk) mask<MASKED>(a, c, before, h, m0 + w * 16 + (l >> 2), j * KEYS + (l & 3) * 2, lk);
      softmax(c, o, top, sum, scale);
      if (j + 1 < blocks) load(sv + (s ^ 1) * KEYS * row, v, a.vs[1], (j + 1) * KEYS, lk, KEYS, a.d);
      copy_commit();
      copy_wait<2>();  // these values are there
      __syncthreads();
#pragma unroll
      for (int kk = 0; kk < KEYS / 16; kk++) {
        u32 fp[4], fv[4];
#pragma unroll
        for (int e = 0; e < 4; e++) fp[e] = bf16_pair(c[2 * kk + (e >> 1)][2 * (e & 1)], c[2 * kk + (e >> 1)][2 * (e & 1) + 1]);
#pragma unroll
        for (int n = 0; n < D / 16; n++) {
          ldm4t(fv, shared_address(sv + s * KEYS * row + at(kk * 16 + (l & 7) + ((l >> 3 & 1) << 3), n * 2 + (l >> 4))));
          mma(o[2 * n], fp, fv);
          mma(o[2 * n + 1], fp, fv + 2);
        }
      }
    }
    copy_wait<0>();
    top[0] *= scale * 0.6931471806f;
    top[1] *= scale * 0.6931471806f;
    store(a, o, top, sum, b, h, m0 + w * 16 + (l >> 2), l & 3);
  }

  // mask scales the scores, adds the bias and hides keys: c[i][e] is that of query row + 8 (e / 2) and key col + 8 i + e % 2.
  template <int MASKED>
  DEV static void mask(const pb_attend& a, float (*c)[4], float before, int h, int row, int col, int lk) {
#pragma unroll
    for (int i = 0; i < KEYS / 8; i++)
#pragma unroll
      for (int e = 0; e < 4; e++) {
        int key = col + 8 * i + (e & 1), query = row + 8 * (e >> 1);
        if (MASKED) c[i][e] *= before;
        if (MASKED && a.bias && key < lk && query < a.lq)
          c[i][e] += ((const float*)a.bias)[h * a.bias_s[0] + query * a.bias_s[1] + key] * 1.4426950409f;
        if (key >= lk || (MASKED && a.causal && key > query)) c[i][e] = -INFINITY;
      }
  }

  // softmax turns scores into probabilities against the new maximum and brings the sums so far to it. scale is above 0.
  DEV static void softmax(float (*c)[4], float (*o)[4], float* top, float* sum, float scale) {
#pragma unroll
    for (int r = 0; r < 2; r++) {
      float m = top[r], t = 0;
#pragma unroll
      for (int i = 0; i < KEYS / 8; i++) m = fmaxf(m, fmaxf(c[i][2 * r], c[i][2 * r + 1]));
      m = fmaxf(m, __shfl_xor_sync(~0u, m, 1));
      m = fmaxf(m, __shfl_xor_sync(~0u, m, 2));
      float f = exp2_fast((top[r] - m) * scale), scaled = -m * scale;
      top[r] = m;
#pragma unroll
      for (int i = 0; i < KEYS / 8; i++) {
        c[i][2 * r] = exp2_fast(fmaf(c[i][2 * r], scale, scaled));
        c[i][2 * r + 1] = exp2_fast(fmaf(c[i][2 * r + 1], scale, scaled));
        t += c[i][2 * r] + c[i][2 * r + 1];
      }
      sum[r] = sum[r] * f + t;
#pragma unroll
      for (int i = 0; i < D / 8; i++) {
        o[i][2 * r] *= f;
        o[i][2 * r + 1] *= f;
      }
    }
  }

  // store divides by the sums; top is in units of the exponential function.
  DEV static void store(const pb_attend& a, float (*o)[4], const float* top, const float* sum, int b, int h, int row, int quad) {
    bf16* out = (bf16*)a.o + b * a.os[0] + h * a.os[2];
#pragma unroll
    for (int r = 0; r < 2; r++) {
      float t = sum[r];
      t += __shfl_xor_sync(~0u, t, 1);
      t += __shfl_xor_sync(~0u, t, 2);
      float inverse = t == 0 ? 0 : 1 / t;  // no key: 0; NaN stays
      int query = row + 8 * r;
      if (query >= a.lq) continue;
      if (a.lse && quad == 0)
        ((float*)a.lse)[b * a.lse_s[0] + h * a.lse_s[1] + query] = t == 0 ? -INFINITY : top[r] + logf(t);
#pragma unroll
      for (int i = 0; i < D / 8; i++)
        if (i * 8 < a.d) *(u32*)(out + query * a.os[1] + i * 8 + quad * 2) = bf16_pair(o[i][2 * r] * inverse, o[i][2 * r + 1] * inverse);
    }
  }
};

#define ATTEND(name, D, masked) \
  extern "C" __global__ __launch_bounds__(LANES, 1) void name(ARGS(pb_attend) a) { attention<D>::template run<masked>(a); }

ATTEND(pb_attend_32, 32, 0)
ATTEND(pb_attend_64, 64, 0)
ATTEND(pb_attend_80, 80, 0)
ATTEND(pb_attend_96, 96, 0)
ATTEND(pb_attend_128, 128, 0)
ATTEND(pb_attend_masked_64, 64, 1)
ATTEND(pb_attend_masked_128, 128, 1)
