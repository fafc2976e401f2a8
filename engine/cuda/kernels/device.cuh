// What the kernels share on the device: types and conversions, 16-byte and scalar access, activations, reductions in a fixed order, and the
// instructions of the tensor cores. The instructions are inline PTX of compute_80; the fake device (tests/fakegpu) brings its own.
#pragma once
#include <cuda_bf16.h>
#include "args.h"

typedef __nv_bfloat16 bf16;
typedef unsigned u32;
typedef unsigned short u16;
typedef unsigned char u8;

#define DEV __device__ __forceinline__
#define KERNEL(threads) extern "C" __global__ __launch_bounds__(threads, 1) void
#define ARGS(type) const __grid_constant__ type

// What a vectorised path moves at once: 8 elements of bf16 or half of 8 of f32.
struct __align__(16) piece {
  u32 v[4];
};

#ifdef __CUDACC__
#define INFINITY __int_as_float(0x7f800000)
extern __shared__ __align__(128) u8 pool[];
DEV u32 shared_address(const void* p) { return (u32)__cvta_generic_to_shared(p); }

// ldm4 loads four 8x8 matrices of 16-bit elements; lane l names row l%8 of matrix l/8. ldm4t transposes each.
DEV void ldm4(u32* r, u32 at) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3},[%4];" : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(at) : "memory");
}
DEV void ldm4t(u32* r, u32 at) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3},[%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(at)
               : "memory");
}
// mma: c [16, 8] += a [16, 16] b [16, 8].
DEV void mma(float* c, const u32* a, const u32* b) {
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},{%0,%1,%2,%3};"
               : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
// mma of 8-bit integers: c [16, 8] += a [16, 32] b [32, 8], exactly. The registers have the bytes that they have with bf16, of twice the columns.
DEV void mma(int* c, const u32* a, const u32* b) {
  asm volatile("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},{%0,%1,%2,%3};"
               : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
// copy16 copies bytes (0 to 16) from global to shared memory without waiting and fills up to 16 with zeros.
DEV void copy16(u32 dst, const void* src, int bytes) {
  asm volatile("cp.async.cg.shared.global [%0],[%1],16,%2;" ::"r"(dst), "l"(src), "r"(bytes) : "memory");
}
DEV void copy_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// copy_wait waits until at most n of the newest groups are under way.
template <int n>
DEV void copy_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(n) : "memory");
}
// exp2_fast is 2^x to 2 units in the last place; results below 2^-126 become 0.
DEV float exp2_fast(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
DEV float f16_float(u16 h) {
  float f;
  asm("cvt.f32.f16 %0, %1;" : "=f"(f) : "h"(h));
  return f;
}
#endif

DEV float widen(float v) { return v; }
DEV float widen(bf16 v) { return __bfloat162float(v); }
DEV void put(float* p, float v) { *p = v; }
DEV void put(bf16* p, float v) { *p = __float2bfloat16_rn(v); }

// bf16_pair rounds two numbers to one register, the first in the low half.
DEV u32 bf16_pair(float low, float high) {
  __nv_bfloat162 p = __floats2bfloat162_rn(low, high);
  return *(u32*)&p;
}
DEV float pair_low(u32 p) { return __uint_as_float(p << 16); }
DEV float pair_high(u32 p) { return __uint_as_float(p & 0xffff0000u); }

// E4M3 and E5M2 to f32, exactly: the bits are those of an f32 with another exponent bias, and E5M2 is the upper half of a binary16.
DEV float e4m3_float(u8 b) {
  u32 rest = b & 0x7f, sign = (u32)(b & 0x80) << 24;
  return rest == 0x7f ? __uint_as_float(sign | 0x7fc00000u) : __uint_as_float(sign | __float_as_uint(__uint_as_float(rest << 20) * 0x1p120f));
}
DEV float e5m2_float(u8 b) { return f16_float((u16)(b << 8)); }

// element reads element i of stored type t.
DEV float element(const void* p, pb_i64 i, int t) {
  switch (t) {
    case PB_F32: return ((const float*)p)[i];
    case PB_BF16: return widen(((const bf16*)p)[i]);
    case PB_F16: return f16_float(((const u16*)p)[i]);
    case PB_F8E4M3: return e4m3_float(((const u8*)p)[i]);
    default: return e5m2_float(((const u8*)p)[i]);
  }
}

// load8 reads n (up to 8) neighbours; vec promises 8 of them and 16-byte alignment. Missing ones become 0.
DEV void load8(float* v, const float* p, int n, int vec) {
  if (vec) {
    piece a = *(const piece*)p, b = *(const piece*)(p + 4);
#pragma unroll
    for (int i = 0; i < 4; i++) {
      v[i] = __uint_as_float(a.v[i]);
      v[4 + i] = __uint_as_float(b.v[i]);
    }
    return;
  }
#pragma unroll
  for (int i = 0; i < 8; i++) v[i] = i < n ? p[i] : 0;
}
DEV void load8(float* v, const bf16* p, int n, int vec) {
  if (vec) {
    piece a = *(const piece*)p;
#pragma unroll
    for (int i = 0; i < 4; i++) {
      v[2 * i] = pair_low(a.v[i]);
      v[2 * i + 1] = pair_high(a.v[i]);
    }
    return;
  }
#pragma unroll
  for (int i = 0; i < 8; i++) v[i] = i < n ? widen(p[i]) : 0;
}

// store8 is the other direction.
DEV void store8(float* p, const float* v, int n, int vec) {
  if (vec) {
    piece a, b;
#pragma unroll
    for (int i = 0; i < 4; i++) {
      a.v[i] = __float_as_uint(v[i]);
      b.v[i] = __float_as_uint(v[4 + i]);
    }
    *(piece*)p = a;
    *(piece*)(p + 4) = b;
    return;
  }
#pragma unroll
  for (int i = 0; i < 8; i++)
    if (i < n) p[i] = v[i];
}
DEV void store8(bf16* p, const float* v, int n, int vec) {
  if (vec) {
    piece a;
#pragma unroll
    for (int i = 0; i < 4; i++) a.v[i] = bf16_pair(v[2 * i], v[2 * i + 1]);
    *(piece*)p = a;
    return;
  }
#pragma unroll
  for (int i = 0; i < 8; i++)
    if (i < n) put(p + i, v[i]);
}

// sigmoid_times is x / (1 + exp(-z)). The fast exponential and division err by a few units in the last place where the result is not tiny.
DEV float sigmoid_times(float x, float z) { return __fdividef(x, 1 + __expf(-z)); }

// activate applies one of the activations of engine.Act. NaN stays NaN.
DEV float activate(float x, int act) {
  switch (act) {
    case PB_GELU_TANH: return sigmoid_times(x, 1.5957691216f * (x + 0.044715f * x * x * x));  // 0.5 (1 + tanh u) = 1 / (1 + exp(-2u))
    case PB_GELU_ERF: return 0.5f * x * (1 + erff(x * 0.70710678f));
    case PB_SILU: return sigmoid_times(x, x);
    case PB_QUICK_GELU: return sigmoid_times(x, 1.702f * x);
    case PB_RELU: return x < 0 ? 0.f : x;
    case PB_SIGMOID: return sigmoid_times(1, x);
    default: return x;
  }
}

// Sums and maxima over groups of lanes (a power of two); every lane gets the result.
DEV float lanes_sum(float v, int lanes) {
  for (int m = lanes >> 1; m > 0; m >>= 1) v += __shfl_xor_sync(~0u, v, m);
  return v;
}
DEV float lanes_max(float v, int lanes) {
  for (int m = lanes >> 1; m > 0; m >>= 1) v = fmaxf(v, __shfl_xor_sync(~0u, v, m));
  return v;
}

// block_sum adds v over the block in a fixed order; scratch holds a number a warp.
DEV float block_sum(float v, float* scratch) {
  v = lanes_sum(v, 32);
  int warps = blockDim.x >> 5;
  if (warps == 1) return v;
  __syncthreads();
  if ((threadIdx.x & 31) == 0) scratch[threadIdx.x >> 5] = v;
  __syncthreads();
  v = 0;
  for (int i = 0; i < warps; i++) v += scratch[i];
  return v;
}

// Indices of one row in the outer dimensions of a call, and where an operand has it.
struct place {
  int i[4];
};
DEV place locate(const pb_rows& r, int row) {
  place p;
#pragma unroll
  for (int d = 3; d > 0; d--) {
    if (r.dims[d] == 1) {
      p.i[d] = 0;
      continue;
    }
    p.i[d] = row % r.dims[d];
    row /= r.dims[d];
  }
  p.i[0] = row;
  return p;
}
DEV pb_i64 offset(const pb_view& v, const place& p) {
  int first = v.div > 1 ? p.i[0] / (int)v.div : p.i[0];
  return first * v.stride[0] + p.i[1] * v.stride[1] + p.i[2] * v.stride[2] + p.i[3] * v.stride[3];
}
template <class T>
DEV T* row_of(const pb_view& v, const place& p) {
  return (T*)v.at + offset(v, p);
}

// block_row is where an operand has the row of this block, in kernels of rows in pieces (see pb_rows); first_block in x has row 0.
template <class T>
DEV T* block_row(const pb_view& v, int first_block = 0) {
  int item = v.div > 1 ? (int)blockIdx.y / (int)v.div : (int)blockIdx.y;
  return (T*)v.at + (item * (int)v.stride[0] + ((int)blockIdx.x - first_block) * (int)v.stride[3]);
}

// Grid-stride loops count in these.
DEV pb_i64 first_item() { return (pb_i64)blockIdx.x * blockDim.x + threadIdx.x; }
DEV pb_i64 item_step() { return (pb_i64)gridDim.x * blockDim.x; }
