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
          for (int i = 0; i < 8; i++) x[i] = __fmaf_rn(y[i], z[i], x[i]);
          break;
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

// pointwise_row computes a row in 16-byte pieces, with the same bits.
template <class T, int OP, int ACT>
DEV void pointwise_row(const pb_pointwise& a) {
  T* to = block_row<T>(a.y);
  const T *from = block_row<T>(a.a), *other = block_row<T>(a.b);
  const float *gate = block_row<float>(a.gate), *bias = (const float*)a.bias;
  for (int c = threadIdx.x * 8; c < a.r.cols; c += blockDim.x * 8) {
    float x[8], y[8], z[8];
    if (OP != PB_FILL) load8(x, from + c, 8, 1);
    if (OP == PB_ADD || OP == PB_GATED || OP == PB_ACT_MUL) load8(y, other + c, 8, 1);
    if (OP == PB_GATED && bias) {
      load8(z, bias + c, 8, 1);
#pragma unroll
      for (int i = 0; i < 8; i++) y[i] += z[i];
    }
    if (OP == PB_GATED && a.gate.at) {
      load8(z, gate + c, 8, 1);
#pragma unroll
      for (int i = 0; i < 8; i++) x[i] = __fmaf_rn(y[i], z[i], x[i]);
    } else if (OP == PB_ADD || OP == PB_GATED) {
#pragma unroll
      for (int i = 0; i < 8; i++) x[i] += y[i];
    }
#pragma unroll
    for (int i = 0; i < 8; i++) {
      if (OP == PB_ACT || OP == PB_ACT_MUL) x[i] = activate(x[i], ACT);
      if (OP == PB_ACT_MUL) x[i] *= y[i];
      if (OP == PB_FILL) x[i] = a.value;
    }
    store8(to + c, x, 8, 1);
  }
}

template <class T>
DEV void pointwise_rows(const pb_pointwise& a) {
  switch (a.op) {
    case PB_ADD: pointwise_row<T, PB_ADD, 0>(a); break;
    case PB_GATED: pointwise_row<T, PB_GATED, 0>(a); break;
    case PB_ACT: a.act == PB_SILU ? pointwise_row<T, PB_ACT, PB_SILU>(a) : pointwise_row<T, PB_ACT, PB_GELU_TANH>(a); break;
    case PB_ACT_MUL: a.act == PB_SILU ? pointwise_row<T, PB_ACT_MUL, PB_SILU>(a) : pointwise_row<T, PB_ACT_MUL, PB_GELU_TANH>(a); break;
    default: pointwise_row<T, PB_FILL, 0>(a);
  }
}

KERNEL(256) pb_pointwise_rows_bf16(ARGS(pb_pointwise) a) { pointwise_rows<bf16>(a); }
KERNEL(256) pb_pointwise_rows_f32(ARGS(pb_pointwise) a) { pointwise_rows<float>(a); }
