// The arguments of every kernel: plain structs, passed by value as the only parameter. The same text is compiled by NVRTC, by g++ for the fake
// device and by cgo, and each of them asserts the sizes and offsets below: that is the type check that cuLaunchKernel does not make.
//
// Addresses are device addresses as numbers. Strides count elements, not bytes. Names of kernels end in the type of their activations.
#ifndef PB_ARGS_H
#define PB_ARGS_H

typedef unsigned long long pb_u64;
typedef long long pb_i64;

#ifdef __cplusplus
#define PB_ASSERT(what) static_assert(what, #what)
#else
#define PB_ASSERT(what) _Static_assert(what, #what)
#endif
#ifdef __CUDACC__
#define offsetof(type, field) __INTADDR__(&((type*)0)->field)
#else
#include <stddef.h>
#endif
#define PB_SIZE(type, bytes) PB_ASSERT(sizeof(struct type) == bytes)
#define PB_AT(type, field, bytes) PB_ASSERT(offsetof(struct type, field) == bytes)

// Element types, numbered as engine.DType.
enum { PB_F32 = 0, PB_BF16 = 1, PB_F16 = 2, PB_F8E4M3 = 3, PB_F8E5M2 = 4, PB_F64 = 8 };

// Blocks of GGUF files and other narrow forms, numbered as engine.Blocks.Form behind PB_BLOCKS. Rows of them start at multiples of 16 bytes and their
// strides count bytes. From PB_FORM_E4M3 on, a row has its factor behind it, at the next multiple of 16 bytes.
enum { PB_BLOCKS = 16, PB_Q8_0, PB_Q4_0, PB_Q4_K, PB_Q5_K, PB_Q6_K, PB_FORM_E4M3, PB_FORM_E5M2, PB_FORM_NVFP4, PB_FORM_MXFP8, PB_FORM_INT8 };

// Activations, numbered as engine.Act.
enum { PB_NONE = 0, PB_GELU_TANH = 1, PB_GELU_ERF = 2, PB_SILU = 3, PB_QUICK_GELU = 4, PB_RELU = 5, PB_SIGMOID = 6 };

// Rows of a call: up to four outer dimensions, outermost first (unused ones lead and are 1), and cols neighbouring elements each.
// vec: every operand can be read and written in 16-byte pieces and cols is a multiple of 8. The kernels of rows in pieces, pb_..._rows, need that, only the
// first and the last of dims, and offsets below 2^31; a block computes the row [blockIdx.y, blockIdx.x].
struct pb_rows {
  int dims[4];
  int rows;  // product of dims
  int cols;
  int vec;
  int pad;
};
PB_SIZE(pb_rows, 32);

// One operand of such a call; at 0 means absent. The outermost index is divided by div first: modulation rows that serve several items.
struct pb_view {
  pb_u64 at;
  pb_i64 stride[4];
  pb_i64 div;
};
PB_SIZE(pb_view, 48);
PB_AT(pb_view, div, 40);

// pointwise.cu. ADD: y = a + b. GATED: y = a + gate * (b + bias). ACT: y = act(a). ACT_MUL: y = act(a) * b. FILL: y = value.
enum { PB_ADD = 0, PB_GATED = 1, PB_ACT = 2, PB_ACT_MUL = 3, PB_FILL = 4 };
struct pb_pointwise {
  struct pb_rows r;
  struct pb_view y, a, b, gate;  // gate f32
  pb_u64 bias;                   // [cols] f32
  int op, act;
  float value;
  int pad;
};
PB_SIZE(pb_pointwise, 248);
PB_AT(pb_pointwise, bias, 224);

// norm.cu: y = (x - mean) * rsqrt(var + eps) * (w_add + w) + b, or without the mean (rms). w, b f32.
struct pb_norm {
  struct pb_rows r;
  struct pb_view y, x, w, b;
  float eps, w_add;  // w_add is 1 for AdaLN's (1 + scale), else 0; an absent w counts as 1 - w_add
  int rms;
  float inverse;  // 1 / cols
};
PB_SIZE(pb_norm, 240);
PB_AT(pb_norm, eps, 224);

// norm.cu: y = a + gate * (b + bias) of the same rows in pieces, which norm.x views.
struct pb_added {
  struct pb_view y, a, b, gate;  // gate f32
  pb_u64 bias;                   // [cols] f32
};
struct pb_norm_added {
  struct pb_norm norm;
  struct pb_added sum;
};
PB_SIZE(pb_norm_added, 440);
PB_AT(pb_norm_added, sum, 240);

// norm.cu: two norms of rows in pieces, the first one of a sum. Blocks from rows on in x compute the second.
struct pb_norm_pair {
  struct pb_norm_added first;
  struct pb_norm second;
  int rows;  // of the first in an item
  int pad;
};
PB_SIZE(pb_norm_pair, 688);
PB_AT(pb_norm_pair, second, 440);

// heads.cu: one of queries, keys and values; strides of batch, token and head.
struct pb_part {
  pb_u64 dst, src;
  pb_i64 ds[3], ss[3];
  pb_u64 w, b;    // [d] f32
  pb_u64 w2, b2;  // of the tokens from pb_heads.split on, in kernels of rows in pieces
  int kind;       // engine.NormKind
  int rope;       // rotate this part
};
PB_SIZE(pb_part, 104);
struct pb_heads {
  struct pb_part part[3];
  pb_u64 cos, sin;  // [l, d/2] f32
  pb_i64 cos_s, sin_s;
  int parts, batch, l, h, d;
  float eps;
  int lanes;  // lanes a head: a power of two, lanes * 8 * (1 or 4) >= d
  int vec;
  int split, pad;  // l, or where tokens with other weights begin
};
PB_SIZE(pb_heads, 384);
PB_AT(pb_heads, cos, 312);

// copy.cu: dims outermost first, count elements. In pb_copy an element has size bytes (1, 2, 4, 8 or 16); pb_narrow and pb_widen convert between f32 and bf16.
struct pb_copy {
  pb_u64 dst, src;
  int dims[5];
  int size;
  pb_i64 ds[5], ss[5];
  pb_i64 count;  // below 2^31
  // n / dims[i] is (high half of n * magic[i] + n) >> shift[i] for n below 2^31
  unsigned magic[5], shift[5];
  int near, pad;  // near: all offsets are below 2^31
};
PB_SIZE(pb_copy, 176);
PB_AT(pb_copy, ds, 40);

// pb_pack: rows of k stored elements become rows of width elements of type to, multiplied by scale, zeros behind k. pb_widen: from is a form of blocks, to
// bf16, width k.
struct pb_pack {
  pb_u64 dst, src;
  pb_i64 rows, k, width;
  pb_i64 dst_ld, src_ld;  // between the starts of two rows
  int from, to;
  float scale;
  int pad;
};
PB_SIZE(pb_pack, 72);

// gather: y[i] = table[ids[i]].
struct pb_gather {
  pb_u64 y, table, ids;  // ids int32
  pb_i64 ys, ts;
  int rows, cols, from, pad;
};
PB_SIZE(pb_gather, 56);

// mean: y[b] = mean over l of x[b, l].
struct pb_mean {
  pb_u64 y, x;
  pb_i64 ys, xb, xl;
  int batch, l, cols, pad;
};
PB_SIZE(pb_mean, 56);

// sum.cu: dst = src[0] + src[1] + ... in this order, count neighbouring elements of each; src may lie on devices that this one reaches.
enum { PB_MAX_PARTS = 32 };
struct pb_sum {
  pb_u64 dst;
  pb_u64 src[PB_MAX_PARTS];
  pb_i64 count;
  int parts;
  int vec;  // all addresses are multiples of 16 bytes
};
PB_SIZE(pb_sum, 280);
PB_AT(pb_sum, count, 264);

// quantise.cu: rows of x in 8 bits; scale has a stride for each outer dimension, like q and x.
struct pb_quantise {
  struct pb_rows r;
  struct pb_view x, q, scale;
};
PB_SIZE(pb_quantise, 176);

// quantise.cu: rows of x [batch, rows, k] rounded to 8 bits for products with int8 weights, ld bytes apart and zero behind k, with a factor a row.
struct pb_round {
  pb_u64 x, q, scales;
  pb_i64 bs, ls;  // batch and row stride of x
  int batch, rows, k, ld;
  int group;  // inputs that are rotated together, a power of 4 to PB_MAX_GROUP; 0: none
  int pad;
};
enum { PB_MAX_GROUP = 4096 };
PB_SIZE(pb_round, 64);

// A factor pair of a product: x [batch, rows, k] and w [n, k].
struct pb_factor {
  pb_u64 x, w;
  pb_i64 bs, ls, ld;  // batch and row stride of x, row stride of w
  int k;
  int w_type;
  int vec, pad;  // vec: rows of x can be copied in 16-byte pieces
};
PB_SIZE(pb_factor, 56);

// linear.cu: y = residual + gate * act(alpha * (x w^T + x2 w2^T) + bias). The second pair is an adapter's, absent when its k is 0.
struct pb_linear {
  struct pb_factor f[2];
  pb_u64 y, res, gate, bias;
  pb_u64 scales;  // of int8: the factors of the rows of x; those of w stand behind their rows
  pb_u64 plus;    // added before the bias, of y's type
  pb_i64 ybs, yls, rbs, rls, pbs, pls, gate_s;
  int batch, rows, n;  // m = batch * rows rows in all
  int gate_per;        // items that share a gate row
  int act, y_type;
  float alpha;
  int vec;  // y, res, gate and bias can be accessed in 16-byte pieces and n is a multiple of 8
};
PB_SIZE(pb_linear, 248);
PB_AT(pb_linear, y, 112);
PB_AT(pb_linear, batch, 216);

// attend.cu and attend_any.cu: o = softmax(scale q k^T + bias) v. Strides of batch, token and head.
enum { PB_MAX_ITEMS = 64 };
struct pb_attend {
  pb_u64 q, k, v, o, lse, bias;
  pb_i64 qs[3], ks[3], vs[3], os[3];
  pb_i64 lse_s[2];   // of batch and head
  pb_i64 bias_s[2];  // of head and query
  int lq, lk, h, d;
  float scale;
  int causal;
  int lens;  // key_len holds the keys of each item; else all are lk
  int pad;
  int key_len[PB_MAX_ITEMS];
};
PB_SIZE(pb_attend, 464);
PB_AT(pb_attend, lq, 176);

// merge: o [b, l, h, d] and lse [b, h, l] take in o2 and lse2.
struct pb_merge {
  pb_u64 o, o2, lse, lse2;
  pb_i64 os[3], o2s[3], lse_s[2], lse2_s[2];
  int batch, l, h, d;
  int vec, pad;
};
PB_SIZE(pb_merge, 136);

// softmax: rows of f32 scores become probabilities in bf16; of cols only the first valid ones count, the others become 0.
struct pb_softmax {
  pb_u64 s, p, lse;  // lse [rows] or absent
  pb_i64 s_ld, p_ld;
  int rows, cols, valid;
  float scale;
};
PB_SIZE(pb_softmax, 56);

// image.cu: im2col writes pixels [first, first + count) of [b, oy, ox] as rows of ky * kx * c elements of size bytes.
struct pb_im2col {
  pb_u64 dst, src;
  pb_i64 xb, xy, xx, ld;
  pb_i64 first;
  int count, size;  // size is that of one piece: an element, or 16 bytes
  int y, x, c;      // c in pieces
  int oy, ox;
  int ky, kx, stride, top, left;
};
PB_SIZE(pb_im2col, 104);

// Group norm: pb_group_part sums slices of pixels into part [b, g, slices, 2] f64, pb_group_sum adds them up in order. pb_group_factors makes mean and
// 1 / deviation of stats, part [b, g, 2] f32, which pb_group_apply reads.
struct pb_group {
  pb_u64 x, y, part, stats, w, b;
  pb_i64 xb, xy, xx, yb, yy, yx;
  pb_i64 sb, sg;  // strides of stats
  pb_i64 count;   // elements a group, of the whole picture
  int batch, height, width, c, groups, slices, act, vec;
  float eps;
  int pad;
};
PB_SIZE(pb_group, 160);
PB_AT(pb_group, batch, 120);

#endif
