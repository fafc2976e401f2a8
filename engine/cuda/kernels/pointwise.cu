// Element-wise operations: Add, GatedAdd, Activate, ActivateMul and Fill. A thread takes 8 neighbours of a row at a time.
#include "device.cuh"

template <class T>
DEV void pointwise(const pb_pointwise& a) {
  int pieces = (a.r.cols + 7) / 8;
  for (pb_i64 item = first_item(); item < (pb_i64)a.r.rows * pieces; item += item_step()) {
    int row = (int)(item / pieces), c = (int)(item % pieces) * 8, n = min(8, a.r.cols - c), vec = a.r.vec;
    place p = locate(a.r, row);
    float x[8], y[8], z[8];
    if (a.op != PB_FILL) load8(x, row_of<T>(a.a, p) + c, n, vec);
    if (a.b.at) load8(y, row_of<T>(a.b, p) + c, n, vec);
    switch (a.op) {
      case PB_ADD:
#pragma unroll
        for (int i = 0; i < 8; i++) x[i] += y[i];
        break;
      case PB_GATED:
        if (a.bias) {
          load8(z, (const float*)a.bias + c, n, vec);
#pragma unroll
          for (int i = 0; i < 8; i++) y[i] += z[i];
        }
        if (a.gate.at) {
          load8(z, row_of<float>(a.gate, p) + c, n, vec);
#pragma unroll
          for (int i = 0; i < 8; i++) y[i] *= z[i];
        }
#pragma unroll
        for (int i = 0; i < 8; i++) x[i] += y[i];
        break;
      case PB_ACT:
#pragma unroll
        for (int i = 0; i < 8; i++) x[i] = activate(x[i], a.act);
        break;
      case PB_ACT_MUL:
#pragma unroll
        for (int i = 0; i < 8; i++) x[i] = activate(x[i], a.act) * y[i];
        break;
      default:
#pragma unroll
        for (int i = 0; i < 8; i++) x[i] = a.value;
    }
    store8(row_of<T>(a.y, p) + c, x, n, vec);
  }
}

KERNEL(256) pb_pointwise_bf16(ARGS(pb_pointwise) a) { pointwise<bf16>(a); }
KERNEL(256) pb_pointwise_f32(ARGS(pb_pointwise) a) { pointwise<float>(a); }
