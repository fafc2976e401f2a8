//go:build emulated && !race

// The AVX-512 BF16 code path (vector width, tile, packing) lowered to portable vectors: slow, but
// it lets a machine without AVX-512 test everything except the intrinsics of vec.h and bf16.h.
#define PB_ISA 0
#define PB_SMALL_CODE
#define VW 16
#define MR 14
#define PB_DOT 1
#define LEVEL portable512bf16
#define BELOW portable512
#include "../kernels/level.h"
