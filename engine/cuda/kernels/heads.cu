// QKNormRoPE: every head of queries and keys is normalised and rotated, values are moved; sources and destinations have any strides.
// A head belongs to a group of lanes of one warp; a lane holds PIECES times 8 neighbours, so that rotated pairs meet in one lane.
#include "device.cuh"

template <class T, int PIECES>
DEV void head(const pb_heads& a, const pb_part& part, int b, int l, int h, int active) {
  int lane = threadIdx.x & (a.lanes - 1), d = a.d;
  float v[PIECES][8], sum = 0;
  const T* src = (const T*)part.src + b * part.ss[0] + l * part.ss[1] + h * part.ss[2];
#pragma unroll
  for (int j = 0; j < PIECES; j++) {
    int c = (lane + j * a.lanes) * 8;
#pragma unroll
    for (int i = 0; i < 8; i++) v[j][i] = 0;
    if (active && c < d) load8(v[j], src + c, min(8, d - c), a.vec);
#pragma unroll
    for (int i = 0; i < 8; i++) sum += v[j][i];
  }
  float mean = part.kind == 2 ? lanes_sum(sum, a.lanes) * (1.0f / d) : 0;
  if (part.kind) {
    sum = 0;
#pragma unroll
    for (int j = 0; j < PIECES; j++)
#pragma unroll
      for (int i = 0; i < 8; i++)
        if ((lane + j * a.lanes) * 8 + i < d) sum = __fmaf_rn(v[j][i] - mean, v[j][i] - mean, sum);
    float rs = rsqrtf(lanes_sum(sum, a.lanes) * (1.0f / d) + a.eps);
#pragma unroll
    for (int j = 0; j < PIECES; j++)
#pragma unroll
      for (int i = 0; i < 8; i++) v[j][i] = (v[j][i] - mean) * rs;
  }
  T* dst = (T*)part.dst + b * part.ds[0] + l * part.ds[1] + h * part.ds[2];
#pragma unroll
  for (int j = 0; j < PIECES; j++) {
    int c = (lane + j * a.lanes) * 8, n = min(8, d - c);
    if (!active || c >= d) continue;
    if (part.w || part.b) {
      float w[8], bias[8];
#pragma unroll
      for (int i = 0; i < 8; i++) {
        w[i] = 1;
        bias[i] = 0;
      }
      if (part.w) load8(w, (const float*)part.w + c, n, 0);
      if (part.b) load8(bias, (const float*)part.b + c, n, 0);
#pragma unroll
      for (int i = 0; i < 8; i++) v[j][i] = __fmaf_rn(v[j][i], w[i], bias[i]);
    }
    if (part.rope) {
      const float *cos = (const float*)a.cos + l * a.cos_s + c / 2, *sin = (const float*)a.sin + l * a.sin_s + c / 2;
#pragma unroll
      for (int i = 0; i < 4; i++)
        if (2 * i < n) {
          float x = v[j][2 * i], y = v[j][2 * i + 1], cs = cos[i], sn = sin[i];
          v[j][2 * i] = __fmaf_rn(x, cs, -__fmul_rn(y, sn));
          v[j][2 * i + 1] = __fmaf_rn(x, sn, __fmul_rn(y, cs));
        }
    }
    store8(dst + c, v[j], n, a.vec);
  }
}

template <class T, int PIECES>
DEV void heads(const pb_heads& a) {
  int per_warp = 32 / a.lanes, count = a.batch * a.l * a.h, rounds = (count + per_warp - 1) / per_warp;
  int warp = (int)(first_item() >> 5), warps = (int)(item_step() >> 5);
  // All lanes of a warp meet in shuffles: they make the same rounds, and a round belongs to one part.
  for (pb_i64 round = warp; round < (pb_i64)a.parts * rounds; round += warps) {
    int at = (int)(round % rounds) * per_warp + (threadIdx.x & 31) / a.lanes, active = at < count;
    int i = active ? at : 0, h = i % a.h;
    i /= a.h;
    head<T, PIECES>(a, a.part[round / rounds], i / a.l, i % a.l, h, active);
  }
}

KERNEL(256) pb_heads_bf16(ARGS(pb_heads) a) { heads<bf16, 1>(a); }
KERNEL(256) pb_heads_f32(ARGS(pb_heads) a) { heads<float, 1>(a); }
KERNEL(256) pb_heads_wide_bf16(ARGS(pb_heads) a) { heads<bf16, 4>(a); }
KERNEL(256) pb_heads_wide_f32(ARGS(pb_heads) a) { heads<float, 4>(a); }

// part_rows is head for one part of a token in 16-byte pieces, a group of LANES lanes a head at a time, with the same bits.
template <class T, int LANES, int KIND>
DEV void part_rows(const pb_heads& a, const pb_part& part, const float* cos, const float* sin, float inverse) {
  int group = threadIdx.x / LANES, groups = blockDim.x / LANES, c = (threadIdx.x & (LANES - 1)) * 8, inside = c < a.d;
  int b = blockIdx.y, l = blockIdx.x, src_step = groups * (int)part.ss[2], dst_step = groups * (int)part.ds[2];
  const T* src = (const T*)part.src + (b * (int)part.ss[0] + l * (int)part.ss[1] + group * (int)part.ss[2] + c);
  T* dst = (T*)part.dst + (b * (int)part.ds[0] + l * (int)part.ds[1] + group * (int)part.ds[2] + c);
  float w[8] = {1, 1, 1, 1, 1, 1, 1, 1}, bias[8] = {};
  const float *w_at = (const float*)(l < a.split ? part.w : part.w2), *b_at = (const float*)(l < a.split ? part.b : part.b2);
  if (KIND && w_at && inside) load8(w, w_at + c, 8, 1);
  if (KIND == 2 && b_at && inside) load8(bias, b_at + c, 8, 1);
  for (int h = 0; h < a.h; h += groups, src += src_step, dst += dst_step) {
    int active = inside && h + group < a.h;
    float v[8] = {};
    if (active) load8(v, src, 8, 1);
    if (KIND) {
      float sum = 0, mean = 0;
      if (KIND == 2) {
#pragma unroll
        for (int i = 0; i < 8; i++) sum += v[i];
        mean = lanes_sum(sum, LANES) * inverse;
        sum = 0;
#pragma unroll
        for (int i = 0; i < 8; i++) v[i] = inside ? __fsub_rn(v[i], mean) : 0;
      }
#pragma unroll
      for (int i = 0; i < 8; i++) sum = __fmaf_rn(v[i], v[i], sum);
      float rs = rsqrtf(lanes_sum(sum, LANES) * inverse + a.eps);
#pragma unroll
      for (int i = 0; i < 8; i++) {
        v[i] = __fmul_rn(v[i], rs);
        v[i] = KIND == 2 ? __fmaf_rn(v[i], w[i], bias[i]) : __fmul_rn(v[i], w[i]);
      }
    }
    if (!active) continue;
    if (part.rope) {
#pragma unroll
      for (int i = 0; i < 4; i++) {
        float x = v[2 * i], y = v[2 * i + 1];
        v[2 * i] = __fmaf_rn(x, cos[i], -__fmul_rn(y, sin[i]));
        v[2 * i + 1] = __fmaf_rn(x, sin[i], __fmul_rn(y, cos[i]));
      }
    }
    store8(dst, v, 8, 1);
  }
}

// A block has all heads of a token: grid (l, batch).
template <class T, int LANES>
DEV void heads_rows(const pb_heads& a) {
  float cos[4] = {}, sin[4] = {}, inverse = 1.0f / a.d;
  int c = (threadIdx.x & (LANES - 1)) * 8;
  if (a.cos && c < a.d) {
    piece p = *(const piece*)((const float*)a.cos + blockIdx.x * a.cos_s + c / 2), q = *(const piece*)((const float*)a.sin + blockIdx.x * a.sin_s + c / 2);
#pragma unroll
    for (int i = 0; i < 4; i++) {
      cos[i] = __uint_as_float(p.v[i]);
      sin[i] = __uint_as_float(q.v[i]);
    }
  }
  for (int i = 0; i < a.parts; i++) switch (a.part[i].kind) {
      case 0: part_rows<T, LANES, 0>(a, a.part[i], cos, sin, inverse); break;
      case 1: part_rows<T, LANES, 1>(a, a.part[i], cos, sin, inverse); break;
      default: part_rows<T, LANES, 2>(a, a.part[i], cos, sin, inverse);
    }
}

KERNEL(256) pb_heads_rows8_bf16(ARGS(pb_heads) a) { heads_rows<bf16, 8>(a); }
KERNEL(256) pb_heads_rows8_f32(ARGS(pb_heads) a) { heads_rows<float, 8>(a); }
KERNEL(256) pb_heads_rows16_bf16(ARGS(pb_heads) a) { heads_rows<bf16, 16>(a); }
KERNEL(256) pb_heads_rows16_f32(ARGS(pb_heads) a) { heads_rows<float, 16>(a); }
