// Strided copies and conversions, packing of weights, table rows and means of rows.
#include "device.cuh"

// where splits the number of an element into the offsets of both sides.
template <class N>
DEV void where(const pb_copy& a, u32 i, N* d, N* s) {
  *d = *s = 0;
#pragma unroll
  for (int k = 4; k >= 0; k--) {
    if (a.dims[k] == 1) continue;
    u32 next = (__umulhi(i, a.magic[k]) + i) >> a.shift[k], at = i - next * a.dims[k];
    i = next;
    *d += (N)at * (N)a.ds[k];
    *s += (N)at * (N)a.ss[k];
  }
}

template <class T, class N = pb_i64>
DEV void copy_as(const pb_copy& a) {
  for (u32 i = (u32)first_item(), step = (u32)item_step(); i < (u32)a.count; i += step) {
    N d, s;
    where(a, i, &d, &s);
    ((T*)a.dst)[d] = ((const T*)a.src)[s];
  }
}

KERNEL(256) pb_copy_strided(ARGS(pb_copy) a) {
  switch (a.size) {
    case 1: copy_as<u8>(a); break;
    case 2: copy_as<u16>(a); break;
    case 4: copy_as<u32>(a); break;
    case 8: copy_as<pb_u64>(a); break;
    default: a.near ? copy_as<piece, int>(a) : copy_as<piece>(a);
  }
}

// With size 8 a thread converts 8 neighbours: dims and strides count pieces of 8 elements then.
template <class D, class S>
DEV void convert(const pb_copy& a) {
  for (pb_i64 i = first_item(); i < a.count; i += item_step()) {
    pb_i64 d, s;
    where(a, (u32)i, &d, &s);
    if (a.size == 8) {
      float v[8];
      load8(v, (const S*)a.src + 8 * s, 8, 1);
      store8((D*)a.dst + 8 * d, v, 8, 1);
    } else {
      put((D*)a.dst + d, widen(((const S*)a.src)[s]));
    }
  }
}
KERNEL(256) pb_copy_narrow(ARGS(pb_copy) a) { convert<bf16, float>(a); }
KERNEL(256) pb_copy_widen(ARGS(pb_copy) a) { convert<float, bf16>(a); }

KERNEL(256) pb_pack_rows(ARGS(pb_pack) a) {
  for (pb_i64 i = first_item(); i < a.rows * a.width; i += item_step()) {
    pb_i64 row = i / a.width, k = i % a.width, to = row * a.dst_ld + k, from = row * a.src_ld + k;
    if (a.to == a.from && a.scale == 1 && a.to != PB_F32) {  // the bits: a NaN keeps its payload, and f16 is made in no other way
      ((u16*)a.dst)[to] = k < a.k ? ((const u16*)a.src)[from] : (u16)0;
      continue;
    }
    float v = k < a.k ? element((const void*)a.src, from, a.from) : 0;
    if (a.scale != 1) v *= a.scale;
    if (a.to == PB_F32)
      ((float*)a.dst)[to] = v;
    else
      put((bf16*)a.dst + to, v);
  }
}

template <class T>
DEV void gather(const pb_gather& a) {
  for (pb_i64 i = first_item(); i < (pb_i64)a.rows * a.cols; i += item_step()) {
    int row = (int)(i / a.cols), c = (int)(i % a.cols);
    put((T*)a.y + row * a.ys + c, element((const void*)a.table, ((const int*)a.ids)[row] * a.ts + c, a.from));
  }
}
KERNEL(256) pb_gather_bf16(ARGS(pb_gather) a) { gather<bf16>(a); }
KERNEL(256) pb_gather_f32(ARGS(pb_gather) a) { gather<float>(a); }

// Four sums a column keep the additions apart; their order is fixed.
template <class T>
DEV void mean(const pb_mean& a) {
  for (pb_i64 i = first_item(); i < (pb_i64)a.batch * a.cols; i += item_step()) {
    int b = (int)(i / a.cols), c = (int)(i % a.cols);
    const T* x = (const T*)a.x + b * a.xb + c;
    float sum[4] = {0, 0, 0, 0};
    for (int l = 0; l < a.l; l += 4)
#pragma unroll
      for (int j = 0; j < 4; j++)
        if (l + j < a.l) sum[j] += widen(x[(l + j) * a.xl]);
    put((T*)a.y + b * a.ys + c, (sum[0] + sum[1] + (sum[2] + sum[3])) / a.l);
  }
}
KERNEL(256) pb_mean_bf16(ARGS(pb_mean) a) { mean<bf16>(a); }
KERNEL(256) pb_mean_f32(ARGS(pb_mean) a) { mean<float>(a); }
