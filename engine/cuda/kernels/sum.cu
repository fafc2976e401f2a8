// Reductions between ranks: one thread adds up the parts of its elements in the order of the ranks, in f32 (f64 for f64), and rounds once, so that
// the sum does not depend on who computes it.
#include "device.cuh"

template <class T>
DEV void sum(const pb_sum& a) {
  for (pb_i64 item = first_item(); item < (a.count + 7) / 8; item += item_step()) {
    pb_i64 at = item * 8, left = a.count - at;
    int n = left < 8 ? (int)left : 8, vec = a.vec && n == 8;
    float total[8] = {}, part[8];
    for (int p = 0; p < a.parts; p++) {
      load8(part, (const T*)a.src[p] + at, n, vec);
#pragma unroll
      for (int i = 0; i < 8; i++) total[i] += part[i];
    }
    store8((T*)a.dst + at, total, n, vec);
  }
}

KERNEL(256) pb_sum_bf16(ARGS(pb_sum) a) { sum<bf16>(a); }
KERNEL(256) pb_sum_f32(ARGS(pb_sum) a) { sum<float>(a); }

KERNEL(256) pb_sum_f64(ARGS(pb_sum) a) {
  for (pb_i64 i = first_item(); i < a.count; i += item_step()) {
    double total = 0;
    for (int p = 0; p < a.parts; p++) total += ((const double*)a.src[p])[i];
    ((double*)a.dst)[i] = total;
  }
}
