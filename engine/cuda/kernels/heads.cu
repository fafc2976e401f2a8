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
  float mean = part.kind == 2 ? lanes_sum(sum, a.lanes) / d : 0;
  if (part.kind) {
    sum = 0;
#pragma unroll
    for (int j = 0; j < PIECES; j++)
#pragma unroll
      for (int i = 0; i < 8; i++)
        if ((lane + j * a.lanes) * 8 + i < d) sum += (v[j][i] - mean) * (v[j][i] - mean);
    float rs = rsqrtf(lanes_sum(sum, a.lanes) / d + a.eps);
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
      for (int i = 0; i < 8; i++) v[j][i] = v[j][i] * w[i] + bias[i];
    }
    if (part.rope) {
      const float *cos = (const float*)a.cos + l * a.cos_s + c / 2, *sin = (const float*)a.sin + l * a.sin_s + c / 2;
#pragma unroll
      for (int i = 0; i < 4; i++)
        if (2 * i < n) {
          float x = v[j][2 * i], y = v[j][2 * i + 1], cs = cos[i], sn = sin[i];
          v[j][2 * i] = x * cs - y * sn;
          v[j][2 * i + 1] = x * sn + y * cs;
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
