//go:build emulated && !race

// The AVX-512 code path (vector width, tile, packing) lowered to portable vectors: slow, but it
// lets a machine without AVX-512 test everything except the intrinsics of vec.h.
#define PB_ISA 0
#define PB_SMALL_CODE
#define VW 16
#define MR 14
#define LEVEL portable512
#include "../kernels/level.h"
