// Arguments of the C kernels and the table that each instruction-set level fills in.
// Addresses are uint64_t on purpose: the Go side keeps the memory alive, and the cgo pointer checks
// have nothing to scan. Strides and offsets count elements unless a comment says bytes.
#ifndef PB_KERNELS_H
#define PB_KERNELS_H

#include <stdint.h>

// Level amx is compiled by clang and from GCC 11.
#if defined(__x86_64__) && defined(__linux__) && !defined(PB_RACE) &&                              \
    (defined(__clang__) || (defined(__GNUC__) && __GNUC__ > 10))
#define PB_WITH_AMX
#endif

// Equal to engine.DType.
enum { PB_F32, PB_BF16, PB_F16, PB_F8E4M3, PB_F8E5M2, PB_I8 = 9, PB_BLOCKS = 99 };

// Equal to engine.Act.
enum { PB_ACT_NONE, PB_GELU_TANH, PB_GELU_ERF, PB_SILU, PB_QUICK_GELU, PB_RELU, PB_SIGMOID };

// Rows of words in a panel of i8 before its weights: the factor of every column, and 128 times the sum
// of its weights.
enum { I8_HEAD = 2 };

// Inputs that are widened at a time of weights in blocks; a multiple of every block.
enum { WIDE_INPUTS = 256 };

enum { PB_MAX_SEG = 32 };

// A strided operand: address of the first element and the strides of up to four leading dimensions.
// Address 0 means absent.
typedef struct {
    uint64_t p;
    int64_t s[4];
} pb_view;

// The common row space of an element-wise call: rows r0..r1 of the d[0] x d[1] x d[2] x d[3] rows,
// each of n elements.
typedef struct {
    int64_t d[4];
    int64_t n, r0, r1;
} pb_rows;

// Stored matrix -> panels of nr columns; columns behind N are zero. f32 and f16: [N/nr][K][nr].
// bf16 and fp8: [N/nr][taps][c/2][nr] words of two neighbouring channels, where k is taps of c
// channels; the last word of an odd c is filled up with 0. i8: see int8.h. Blocks: k and
// row count bytes, see blocks.h.
typedef struct {
    uint64_t src, dst;    // dst: first panel
    uint64_t lut;         // 256 bf16 values for fp8 sources
    uint64_t scales;      // factors of the rows of i8, and of blocks with factors (0: all 1)
    int64_t n, k, c, row; // row: elements between source rows
    int64_t p0, p1;       // panels of this call
    int32_t src_dtype, dst_dtype;
} pb_pack;

// Rows of activations for products with i8: row r is row r % rows of item r / rows.
typedef struct {
    uint64_t x; // rows of x_dtype, f32 or bf16
    int64_t bs, ls, rows, k;
    int64_t r0, r1;         // rows of this call
    uint64_t words, scales; // ceil(k/4) words a row, or twice as many (int8.h); a factor a row
    uint64_t tmp;           // scratch: k + 3 floats, filled up to vectors
    int64_t x_dtype, rotated;
    float norm; // 1/sqrt(rotated)
} pb_quant;

// One product that is summed into the output tile: rows of x times a packed matrix.
typedef struct {
    uint64_t x;     // rows [batch, rows, k] of x_dtype, f32 or bf16; of i8: words, as if f32
    int64_t bs, ls; // batch and row stride
    uint64_t w;     // first panel
    int64_t k;
    int32_t dtype, x_dtype;
    int64_t blocks; // form that bf16 is widened from (blocks.h), 0: it is there as it is
    int64_t rotated; // inputs of such a form that were rotated together
} pb_seg;

// Linear layer, or a convolution when taps is not 0 (then seg 0 is the picture and its x, bs, ls
// are the picture's address, batch stride and pixel stride).
typedef struct {
    uint64_t seg;
    int64_t nseg;
    int64_t batch, rows, n; // rows: output rows (pixels) of one batch item
    uint64_t y, res, gate, bias;
    int64_t y_bs, y_ls, res_bs, res_ls, gate_s, gate_per; // gate row = b / gate_per
    float scale;
    int32_t act;
    int64_t y_dtype; // of y and res
    int64_t tiles;   // register tiles a batch item is cut into
    int64_t t0, t1;  // tiles of this call, counted over the whole batch
    int64_t p0, p1;  // panels of this call
    uint64_t a, c;   // scratch: packed rows and accumulators
    uint64_t wide;   // scratch: words of WIDE_INPUTS inputs, if seg 0 is in blocks
    uint64_t scales; // of i8 in seg 0: a factor for every row of x
    int64_t packed;  // a already holds tiles t0..t1
    int64_t kc;      // depth of one pass over a panel
    int64_t chunk;   // panels that share one set of accumulators
    // Convolution only.
    int64_t taps, ky, kx, stride, top, left;
    int64_t in_y, in_x, c_in, out_y, out_x;
    int64_t x_ys, y_ys, res_ys;    // strides of a picture row
    int64_t b, oy0, oy1, ox0, ox1; // output block of this call
} pb_gemm;

typedef struct {
    uint64_t q, k, v, o, lse, bias;
    int64_t q_b, q_l, q_h, k_b, k_l, k_h, v_b, v_l, v_h, o_b, o_l, o_h;
    int64_t lse_b, lse_h, bias_h, bias_l;
    int64_t heads, lq, lk, d;
    int64_t keys;    // valid keys of this batch item
    int64_t b, h;    // item and head of this call
    int64_t l0, l1;  // queries (attention) or keys (packing) of this call
    uint64_t kp, vp; // packed keys and values of this head
    uint64_t tmp;    // scratch
    float scale;
    int32_t causal;
    int64_t dtype; // of q, k, v and o
} pb_attn;

// Element-wise and row-wise operations; the formula of each is at its case in elementwise.h.
enum {
    PB_ADD,
    PB_GATED_ADD,
    PB_ACT,
    PB_ACT_MUL,
    PB_AFFINE_ACT,
    PB_FILL,
    PB_LAYER_NORM,
    PB_ADA_LN,
    PB_RMS_NORM,
    PB_MERGE
};

typedef struct {
    pb_rows rows;
    pb_view y, a, b, c, d;
    int32_t op, act;
    float value;   // eps of the norms, the value of fill
    int32_t dtype; // of the activations, see ew in elementwise.h; all else is f32
} pb_ew;

// Copy with conversion; last strides are given, so transposed views work.
typedef struct {
    pb_rows rows;
    pb_view dst, src;
    int64_t dst_last, src_last;
    int32_t dst_dtype, src_dtype;
} pb_copy;

typedef struct {
    pb_rows rows;           // rows of d[2] = B, d[3] = L; n = H
    pb_view dst[3], src[3]; // q, k, v as [B, L] rows; address 0: absent
    int64_t dst_h[3], src_h[3];
    uint64_t w[2], b[2]; // norm weights and biases of q and k
    uint64_t cos, sin;
    int64_t cos_s, sin_s; // row strides of the tables
    int64_t d;
    int32_t norm; // equal to engine.NormKind
    float eps;
    int64_t dtype; // of dst and src
} pb_qk;

typedef struct {
    uint64_t y, table, ids, lut;
    int64_t y_s, table_s, e, r0, r1;
    int32_t dtype, y_dtype;
} pb_gather;

// y[c0..c1) = mean over l of x.
typedef struct {
    uint64_t y, x;
    int64_t ls, l, c0, c1;
    int64_t dtype; // of y and x
} pb_mean;

// Per-channel sums of pixels r0..r1 of one picture: out[c] = sum, out[C + c] = sum of squares.
typedef struct {
    uint64_t out, x;
    int64_t ys, xs, in_x, c, r0, r1;
    int64_t dtype; // of x
} pb_stats;

typedef struct {
    const char* name;
    int vw, mr, nr;
    int dot; // multiplies bf16 activations with bf16 weights and each other as they are
    int panels; // that such a product, or one of int8, takes at once
    void (*pack)(const pb_pack*);
    void (*quantise)(const pb_quant*);
    void (*attn_pack)(const pb_attn*);
    void (*attn)(const pb_attn*);
    void (*gemm)(const pb_gemm*);
    void (*ew)(const pb_ew*);
    void (*copy)(const pb_copy*);
    void (*qk)(const pb_qk*);
    void (*gather)(const pb_gather*);
    void (*mean)(const pb_mean*);
    void (*stats)(const pb_stats*);
    double (*peak)(int64_t);     // runs n rounds of independent FMAs, returns the flops done
    double (*dot_peak)(int64_t); // the same with products of bf16 pairs; 0 without dot
} pb_kernels;

extern const pb_kernels pb_level_generic, pb_level_avx2, pb_level_avx512, pb_level_avx512bf16,
    pb_level_amx;

// pb_level returns the kernels of level i, or 0 where there is no such level or the CPU lacks it.
const pb_kernels* pb_level(int i);
// pb_level_name returns the name of level i, best last, or 0 behind the last one.
const char* pb_level_name(int i);

#endif
