//go:build emulated && !race

// Package emulated has the AVX-512 and AMX levels of engine/cpu in portable code, so that every machine can test these
// paths. Vector width, register tile, packing and tails are those of the real levels; only the intrinsics of vec.h,
// bf16.h and tiles.h are replaced. The levels are slow to compile, so they need the build tag emulated, which
// `make soak` sets, and `make test-all` where the CPU lacks AVX-512 BF16. Only tests import this package.
package emulated

/*
#cgo CFLAGS: -std=c11 -O1 -g1 -Wall -Wextra -Wno-psabi
#cgo LDFLAGS: -lm
#include "../kernels/kernels.h"
extern const pb_kernels pb_level_portable512, pb_level_portable512bf16, pb_level_portableamx;
*/
import "C"

import (
	"unsafe"

	"patchbay/engine/cpu/kernels"
)

// AVX512 returns the level avx512 in portable vectors.
func AVX512() kernels.Level {
	return kernels.Level{Name: "portable512", Table: unsafe.Pointer(&C.pb_level_portable512)}
}

// AVX512BF16 returns the level avx512bf16 in portable vectors, where vdpbf16ps is two multiply-adds of widened halves.
func AVX512BF16() kernels.Level {
	return kernels.Level{Name: "portable512bf16", Table: unsafe.Pointer(&C.pb_level_portable512bf16)}
}

// AMX returns the level amx in portable code. Tiles are arrays, and sums equal those of TDPBF16PS except for subnormal
// numbers.
func AMX() kernels.Level {
	return kernels.Level{Name: "portableamx", Table: unsafe.Pointer(&C.pb_level_portableamx)}
}
