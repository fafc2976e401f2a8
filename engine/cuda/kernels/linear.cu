// Linear layers: y = residual + gate * act(alpha * (x w^T + x2 w2^T) + bias), where the second pair is an adapter's. Rows of x are [batch, rows].
//
// pb_linear_mma*: bf16 x with bf16 or f16 w on the tensor cores. A block has a tile of BM x BN; 32 columns of both factors at a time pass through four
// stages of shared memory, filled by asynchronous copies three stages ahead. A warp has a part of WM x WN in its registers. f16 becomes bf16 in
// registers.
// pb_linear_i8*: the same with both factors in 8 bits, whose sums are exact: 64 columns are as many bytes as 32 of bf16, and all counts of columns here are
// of pairs. A row of w has its factor behind its columns.
// pb_linear_any*: any other types in f32, tiles of 64 x 64. pb_linear_few*: up to 8 rows, a warp a feature, so that the weight is read once; _blocks: of a
// weight in blocks, widened in registers. For more rows pb_widen_blocks widens it to memory before.
#include "device.cuh"

#define BK 32      // columns of both factors a stage
#define STAGES 4
#define CHUNKS 4   // 16-byte pieces in a row of a stage

// stage_at is the element where piece c of row r of a stage lies. Rows are 64 bytes, so that 8 rows of the same piece would meet in two banks: the piece
// is exchanged with another one by the row.
DEV int stage_at(int r, int c) { return r * BK + ((c ^ (r >> 1 & 3)) << 3); }

// bf16_of_f16 converts the two halves of a register.
DEV u32 bf16_of_f16(u32 p) { return bf16_pair(f16_float((u16)p), f16_float((u16)(p >> 16))); }

// finish applies the epilogue to n (up to 8) neighbours of row m from column c on and stores them.
template <class T>
DEV void finish(const pb_linear& a, float* v, int m, int c, int n, int vec) {
  int b = m / a.rows, l = m % a.rows;
  float t[8];
#pragma unroll
  for (int i = 0; i < 8; i++) v[i] *= a.alpha;
  if (a.plus) {
    if (a.y_type == PB_F32)
      load8(t, (const float*)a.plus + b * a.pbs + l * a.pls + c, n, vec);
    else
      load8(t, (const bf16*)a.plus + b * a.pbs + l * a.pls + c, n, vec);
#pragma unroll
    for (int i = 0; i < 8; i++) v[i] += t[i];
  }
  if (a.bias) {
    load8(t, (const float*)a.bias + c, n, vec);
#pragma unroll
    for (int i = 0; i < 8; i++) v[i] += t[i];
  }
  if (a.act) {
#pragma unroll
    for (int i = 0; i < 8; i++) v[i] = activate(v[i], a.act);
  }
  if (a.gate) {
    load8(t, (const float*)a.gate + b / a.gate_per * a.gate_s + c, n, vec);
#pragma unroll
    for (int i = 0; i < 8; i++) v[i] *= t[i];
  }
  if (a.res) {
    load8(t, (const T*)a.res + b * a.rbs + l * a.rls + c, n, vec);
#pragma unroll
    for (int i = 0; i < 8; i++) v[i] += t[i];
  }
  if (a.y_type == PB_F32)
    store8((float*)a.y + b * a.ybs + l * a.yls + c, v, n, vec);
  else
    store8((bf16*)a.y + b * a.ybs + l * a.yls + c, v, n, vec);
}

// A is the type of sums, T that of x and the residual.
template <int BM, int BN, int WM, int WN, int F16, class A = float, class T = bf16>
struct tile {
  static const int warps = BM / WM * (BN / WN), lanes = warps * 32;
  static const int stage = (BM + BN) * BK;  // elements of a stage: rows of x, then rows of w
  static const int xs = BM * CHUNKS / lanes, ws = BN * CHUNKS / lanes;
  const bf16* x[xs];
  const bf16* w[ws];
  int k;     // columns of the current pair
  int from;  // first stage of the current pair

  // point makes the rows' addresses of pair f; rows behind the end get those of the last one and are filled with zeros.
  DEV void point(const pb_linear& a, const pb_factor& f, int first) {
    int m = a.batch * a.rows;
    k = f.k;
    from = first;
#pragma unroll
    for (int i = 0; i < xs; i++) {
      int row = min((int)(blockIdx.x * BM) + (int)(threadIdx.x + i * lanes) / CHUNKS, m - 1);
      x[i] = (const bf16*)f.x + row / a.rows * f.bs + row % a.rows * f.ls;
    }
#pragma unroll
    for (int i = 0; i < ws; i++) {
      int row = min((int)(blockIdx.y * BN) + (int)(threadIdx.x + i * lanes) / CHUNKS, a.n - 1);
      w[i] = (const bf16*)f.w + row * f.ld;
    }
  }

  // load fills stage s with columns of number at.
  DEV void load(const pb_linear& a, const pb_factor& f, bf16* s, int at) {
    int c = threadIdx.x % CHUNKS, col = (at - from) * BK + c * 8, bytes = 2 * max(0, min(8, k - col));
    int m = a.batch * a.rows;
#pragma unroll
    for (int i = 0; i < xs; i++) {
      int r = (threadIdx.x + i * lanes) / CHUNKS, there = (int)(blockIdx.x * BM) + r < m ? bytes : 0;
      if (f.vec) {
        copy16(shared_address(s + stage_at(r, c)), x[i] + (there ? col : 0), there);
        continue;
      }
      piece p;
#pragma unroll
      for (int j = 0; j < 4; j++) {
        u32 low = 4 * j < there ? ((const u16*)x[i])[col + 2 * j] : 0, high = 4 * j + 2 < there ? ((const u16*)x[i])[col + 2 * j + 1] : 0;
        p.v[j] = low | high << 16;
      }
      *(piece*)(s + stage_at(r, c)) = p;
    }
    s += BM * BK;
#pragma unroll
    for (int i = 0; i < ws; i++) {
      int r = (threadIdx.x + i * lanes) / CHUNKS, there = (int)(blockIdx.y * BN) + r < a.n ? bytes : 0;
      copy16(shared_address(s + stage_at(r, c)), w[i] + (there ? col : 0), there);
    }
  }

  DEV void run(const pb_linear& a) {
    bf16* s = (bf16*)pool;
    int warp = threadIdx.x >> 5, l = threadIdx.x & 31, wm = warp % (BM / WM) * WM, wn = warp / (BM / WM) * WN;
    A acc[WM / 16][WN / 8][4];
#pragma unroll
    for (int i = 0; i < WM / 16; i++)
#pragma unroll
      for (int j = 0; j < WN / 8; j++) acc[i][j][0] = acc[i][j][1] = acc[i][j][2] = acc[i][j][3] = 0;
    int first = (a.f[0].k + BK - 1) / BK, steps = first + (a.f[1].k + BK - 1) / BK, next = 0;
    point(a, a.f[0], 0);
    for (; next < STAGES - 1; next++) {
      if (next == first) point(a, a.f[1], first);
      if (next < steps) load(a, a.f[next >= first], s + next * stage, next);
      copy_commit();
    }
    for (int step = 0; step < steps; step++, next++) {
      int convert = F16 && a.f[step >= first].w_type == PB_F16;
      copy_wait<STAGES - 2>();
      __syncthreads();
      if (next == first) point(a, a.f[1], first);
      if (next < steps) load(a, a.f[next >= first], s + next % STAGES * stage, next);
      copy_commit();
      const bf16 *sx = s + step % STAGES * stage + wm * BK, *sw = s + step % STAGES * stage + (BM + wn) * BK;
#pragma unroll
      for (int kk = 0; kk < BK / 16; kk++) {
        u32 fx[WM / 16][4], fw[WN / 16][4];
#pragma unroll
        for (int i = 0; i < WM / 16; i++) ldm4(fx[i], shared_address(sx + stage_at(i * 16 + (l & 15), kk * 2 + (l >> 4))));
#pragma unroll
        for (int j = 0; j < WN / 16; j++) {
          ldm4(fw[j], shared_address(sw + stage_at(j * 16 + (l & 7) + (l >> 4 << 3), kk * 2 + (l >> 3 & 1))));
          if (convert) {
#pragma unroll
            for (int i = 0; i < 4; i++) fw[j][i] = bf16_of_f16(fw[j][i]);
          }
        }
#pragma unroll
        for (int i = 0; i < WM / 16; i++)
#pragma unroll
          for (int j = 0; j < WN / 8; j++) mma(acc[i][j], fx[i], fw[j / 2] + 2 * (j & 1));
      }
    }
    copy_wait<0>();
    __syncthreads();
    store(a, acc, warp, l, wm, wn);
  }

  // store passes 16 rows of a warp at a time through shared memory, so that a lane finishes 8 neighbours of a row.
  DEV void store(const pb_linear& a, A (*acc)[WN / 8][4], int warp, int l, int wm, int wn) {
    const int ld = WN + 8;
    float* s = (float*)pool + warp * 16 * ld;
    int m = a.batch * a.rows;
#pragma unroll 1
    for (int part = 0; part < WM / 16; part++) {
#pragma unroll
      for (int i = 0; i < WM / 16; i++)
        if (i == part) {
#pragma unroll
          for (int j = 0; j < WN / 8; j++)
#pragma unroll
            for (int e = 0; e < 4; e++) s[((l >> 2) + 8 * (e >> 1)) * ld + j * 8 + (l & 3) * 2 + (e & 1)] = (float)acc[i][j][e];
        }
      __syncwarp();
#pragma unroll 1
      for (int i = l; i < 16 * WN / 8; i += 32) {
        int r = i / (WN / 8), c = i % (WN / 8) * 8;
        int row = blockIdx.x * BM + wm + part * 16 + r, col = blockIdx.y * BN + wn + c;
        if (row >= m || col >= a.n) continue;
        float v[8];
        load8(v, s + r * ld + c, 8, 1);
        if (a.scales) {
          float factor = ((const float*)a.scales)[row];
#pragma unroll
          for (int e = 0; e < 8; e++)
            if (col + e < a.n) v[e] = __fmul_rn(v[e], __fmul_rn(factor, *(const float*)((const bf16*)a.f[0].w + (col + e) * a.f[0].ld + a.f[0].k)));
        }
        finish<T>(a, v, row, col, min(8, a.n - col), a.vec);
      }
      __syncwarp();
    }
  }
};

extern "C" __global__ __launch_bounds__(256, 1) void pb_linear_mma_256(ARGS(pb_linear) a) {
  tile<128, 256, 64, 64, 0> t;
  t.run(a);
}
extern "C" __global__ __launch_bounds__(128, 2) void pb_linear_mma_128(ARGS(pb_linear) a) {
  tile<128, 128, 64, 64, 0> t;
  t.run(a);
}
extern "C" __global__ __launch_bounds__(128) void pb_linear_mma_64(ARGS(pb_linear) a) {
  tile<64, 64, 32, 32, 0> t;
  t.run(a);
}
extern "C" __global__ __launch_bounds__(256, 1) void pb_linear_mma_f16(ARGS(pb_linear) a) {
  tile<128, 128, 64, 32, 1> t;
  t.run(a);
}

extern "C" __global__ __launch_bounds__(256, 1) void pb_linear_i8_256(ARGS(pb_linear) a) {
  tile<128, 256, 64, 64, 0, int> t;
  t.run(a);
}
extern "C" __global__ __launch_bounds__(128) void pb_linear_i8_64_bf16(ARGS(pb_linear) a) {
  tile<64, 64, 32, 32, 0, int> t;
  t.run(a);
}
extern "C" __global__ __launch_bounds__(128) void pb_linear_i8_64_f32(ARGS(pb_linear) a) {
  tile<64, 64, 32, 32, 0, int, float> t;
  t.run(a);
}

// Tiles of 64 x 64 and 16 columns at a time; a thread has 4 x 4.
#define SIDE 64
#define DEPTH 16

template <class T>
DEV void any(const pb_linear& a) {
  float(*sx)[SIDE + 4] = (float(*)[SIDE + 4])pool, (*sw)[SIDE + 4] = sx + DEPTH;
  int t = threadIdx.x, m = a.batch * a.rows, ty = t / 16 * 4, tx = t % 16 * 4;
  float acc[4][4] = {};
  for (int pair = 0; pair < 2; pair++) {
    const pb_factor& f = a.f[pair];
    int row = blockIdx.x * SIDE + t / 4, col = blockIdx.y * SIDE + t / 4, k4 = t % 4 * 4;
    const T* x = (const T*)f.x + min(row, m - 1) / a.rows * f.bs + min(row, m - 1) % a.rows * f.ls;
    for (int k = 0; k < f.k; k += DEPTH) {
      __syncthreads();
#pragma unroll
      for (int i = 0; i < 4; i++) {
        int c = k + k4 + i;
        sx[k4 + i][t / 4] = row < m && c < f.k ? widen(x[c]) : 0;
        sw[k4 + i][t / 4] = col < a.n && c < f.k ? element((const void*)f.w, col * f.ld + c, f.w_type) : 0;
      }
      __syncthreads();
#pragma unroll
      for (int i = 0; i < DEPTH; i++)
#pragma unroll
        for (int y = 0; y < 4; y++)
#pragma unroll
          for (int z = 0; z < 4; z++) acc[y][z] = fmaf(sx[i][ty + y], sw[i][tx + z], acc[y][z]);
    }
  }
#pragma unroll
  for (int y = 0; y < 4; y++) {
    int row = blockIdx.x * SIDE + ty + y, col = blockIdx.y * SIDE + tx;
    if (row >= m || col >= a.n) continue;
    float v[8] = {acc[y][0], acc[y][1], acc[y][2], acc[y][3]};
    finish<T>(a, v, row, col, min(4, a.n - col), 0);
  }
}
KERNEL(256) pb_linear_any_bf16(ARGS(pb_linear) a) { any<bf16>(a); }
KERNEL(256) pb_linear_any_f32(ARGS(pb_linear) a) { any<float>(a); }

// weights8 reads n (up to 8) neighbours of a row of w, which starts at a multiple of 16 bytes.
DEV void weights8(float* v, const pb_factor& f, pb_i64 row, int k, int n) {
  if (n == 8 && f.w_type == PB_BF16) return load8(v, (const bf16*)f.w + row * f.ld + k, 8, 1);
  if (n == 8 && f.w_type == PB_F32) return load8(v, (const float*)f.w + row * f.ld + k, 8, 1);
#pragma unroll
  for (int i = 0; i < 8; i++) v[i] = i < n ? element((const void*)f.w, row * f.ld + k + i, f.w_type) : 0;
}

// eight reads 8 bytes that start at an even address; byte_of is one of them.
DEV void eight(u32* q, const u8* p) {
  const u16* h = (const u16*)p;
  q[0] = h[0] | (u32)h[1] << 16;
  q[1] = h[2] | (u32)h[3] << 16;
}
DEV u32 byte_of(const u32* q, int i) { return q[i >> 2] >> (i & 3) * 8 & 255; }
DEV float signed_float(u32 byte) { return (float)(signed char)byte; }
DEV float half_at(const u8* p) { return f16_float(*(const u16*)p); }

// factor_behind reads the factor behind the bytes of a row.
DEV float factor_behind(const u8* row, int bytes) { return *(const float*)(row + (bytes + 15) / 16 * 16); }

// block8 widens 8 neighbours of a row of columns in blocks, from column k, a multiple of 8, on. Formulas, places of bytes and roundings are those of
// engine/gguf: products and differences are rounded on their own.
DEV void block8(float* v, const u8* row, int k, int form, int columns) {
  u32 q[2], h[2];
  switch (form) {
    case PB_FORM_E4M3:
    case PB_FORM_E5M2:
    case PB_FORM_INT8: {
      float factor = factor_behind(row, columns);
      eight(q, row + k);
#pragma unroll
      for (int i = 0; i < 8; i++) {
        u8 code = (u8)byte_of(q, i);
        v[i] = __fmul_rn(form == PB_FORM_INT8 ? signed_float(code) : form == PB_FORM_E4M3 ? e4m3_float(code) : e5m2_float(code), factor);
      }
      return;
    }
    case PB_FORM_NVFP4: {
      const u8* b = row + k / 32 * 18;
      float factor = factor_behind(row, columns / 32 * 18), scale = e4m3_float(b[k % 32 / 16]);
      const u16* pairs = (const u16*)(b + 2 + k % 32 / 2);
      q[0] = pairs[0] | (u32)pairs[1] << 16;
#pragma unroll
      for (int i = 0; i < 8; i++) {
        u32 code = q[0] >> (i / 2 * 8 + 4 - i % 2 * 4) & 15, rest = code & 7;
        float x = rest < 4 ? 0.5f * (float)rest : rest < 6 ? (float)(rest - 2) : (float)(2 * rest - 8);
        v[i] = __fmul_rn(__fmul_rn(code & 8 ? -x : x, scale), factor);
      }
      return;
    }
    case PB_FORM_MXFP8: {
      const u8* b = row + k / 64 * 66;
      float factor = factor_behind(row, columns / 64 * 66), scale = __uint_as_float((u32)b[k % 64 / 32] << 23);
      eight(q, b + 2 + k % 64);
#pragma unroll
      for (int i = 0; i < 8; i++) v[i] = __fmul_rn(__fmul_rn(e4m3_float((u8)byte_of(q, i)), scale), factor);
      return;
    }
    case PB_Q8_0: {
      const u8* b = row + k / 32 * 34;
      float d = half_at(b);
      eight(q, b + 2 + k % 32);
#pragma unroll
      for (int i = 0; i < 8; i++) v[i] = __fmul_rn(signed_float(byte_of(q, i)), d);
      return;
    }
    case PB_Q4_0: {
      const u8* b = row + k / 32 * 18;
      float d = half_at(b);
      int shift = k % 32 / 16 * 4;
      eight(q, b + 2 + k % 16);
#pragma unroll
      for (int i = 0; i < 8; i++) v[i] = __fmul_rn((float)((int)(byte_of(q, i) >> shift & 15) - 8), d);
      return;
    }
    case PB_Q6_K: {
      const u8* b = row + k / 256 * 210;
      int at = k % 256, half = at / 128, quarter = at / 32 % 4, i0 = at % 32;
      float f = __fmul_rn(half_at(b + 208), signed_float(b[192 + at / 16]));
      eight(q, b + half * 64 + quarter % 2 * 32 + i0);
      eight(h, b + 128 + half * 32 + i0);
#pragma unroll
      for (int i = 0; i < 8; i++) {
        u32 low = byte_of(q, i) >> quarter / 2 * 4 & 15, high = byte_of(h, i) >> quarter * 2 & 3;
        v[i] = __fmul_rn(f, (float)((int)(low | high << 4) - 32));
      }
      return;
    }
    default: {  // PB_Q4_K, PB_Q5_K
      int fifth = form == PB_Q5_K, g = k % 256 / 32, i0 = k % 32;
      const u8 *b = row + k / 256 * (fifth ? 176 : 144), *s = b + 4;
      u32 scale = g < 4 ? s[g] & 63 : (s[g + 4] & 15) | s[g - 4] >> 6 << 4, low = g < 4 ? s[g + 4] & 63 : s[g + 4] >> 4 | s[g] >> 6 << 4;
      float f = __fmul_rn(half_at(b), (float)scale), m = __fmul_rn(half_at(b + 2), (float)low);
      eight(q, b + (fifth ? 48 : 16) + g / 2 * 32 + i0);
      h[0] = h[1] = 0;
      if (fifth) eight(h, b + 16 + i0);
#pragma unroll
      for (int i = 0; i < 8; i++)
        v[i] = __fsub_rn(__fmul_rn(f, (float)((byte_of(q, i) >> g % 2 * 4 & 15) | (byte_of(h, i) >> g & 1) << 4)), m);
    }
  }
}

// Rows of blocks become rows of bf16.
KERNEL(256) pb_widen_blocks(ARGS(pb_pack) a) {
  int pieces = (int)a.k / 8;
  for (pb_i64 i = first_item(); i < a.rows * pieces; i += item_step()) {
    int row = (int)i / pieces, k = (int)i % pieces * 8;
    float v[8];
    block8(v, (const u8*)a.src + row * a.src_ld, k, a.from, (int)a.k);
    store8((bf16*)a.dst + row * a.dst_ld + k, v, 8, 1);
  }
}

#define FEW 8

template <class T, int BLOCKS = 0>
DEV void few(const pb_linear& a) {
  int lane = threadIdx.x & 31, col = (int)(first_item() >> 5), m = a.batch * a.rows;
  if (col >= a.n) return;  // the whole warp
  float sum[FEW] = {};
  for (int pair = 0; pair < 2; pair++) {
    const pb_factor& f = a.f[pair];
    for (int k = lane * 8; k < f.k; k += 256) {
      float w[8], x[8];
      int n = min(8, f.k - k);
      if (BLOCKS && pair == 0) {
        block8(w, (const u8*)f.w + col * f.ld, k, f.w_type, f.k);
#pragma unroll
        for (int i = 0; i < 8; i++) w[i] = widen(__float2bfloat16_rn(w[i]));
      } else {
        weights8(w, f, col, k, n);
      }
#pragma unroll
      for (int r = 0; r < FEW; r++) {
        if (r >= m) break;
        load8(x, (const T*)f.x + r / a.rows * f.bs + r % a.rows * f.ls + k, n, f.vec && n == 8);
#pragma unroll
        for (int i = 0; i < 8; i++) sum[r] = fmaf(w[i], x[i], sum[r]);
      }
    }
  }
  float mine = 0;
#pragma unroll
  for (int r = 0; r < FEW; r++) {
    float s = lanes_sum(sum[r], 32);
    if (r == lane) mine = s;
  }
  if (lane < m) {
    float v[8] = {mine};
    finish<T>(a, v, lane, col, 1, 0);
  }
}
KERNEL(256) pb_linear_few_bf16(ARGS(pb_linear) a) { few<bf16>(a); }
KERNEL(256) pb_linear_few_f32(ARGS(pb_linear) a) { few<float>(a); }
KERNEL(256) pb_linear_few_blocks_bf16(ARGS(pb_linear) a) { few<bf16, 1>(a); }
KERNEL(256) pb_linear_few_blocks_f32(ARGS(pb_linear) a) { few<float, 1>(a); }
