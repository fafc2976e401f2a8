//go:build emulated && !race

// Package emulated is the AVX-512 and AMX levels of engine/cpu in portable code: vector width, register tile, packing
// and tails are theirs, only the intrinsics of vec.h, bf16.h and tiles.h are not. Every machine can test these paths
// with it. They are slow to compile, so they are there only with the build tag emulated, which `make test` gives where
// the CPU lacks AVX-512 BF16, and only tests import this package.
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

// AVX512 is the level avx512 in portable vectors.
func AVX512() kernels.Level {
	return kernels.Level{Name: "portable512", Table: unsafe.Pointer(&C.pb_level_portable512)}
}

// AVX512BF16 is the level avx512bf16 in portable vectors: vdpbf16ps is two multiply-adds of widened halves.
func AVX512BF16() kernels.Level {
	return kernels.Level{Name: "portable512bf16", Table: unsafe.Pointer(&C.pb_level_portable512bf16)}
}

// AMX is the level amx in portable code: tiles are arrays, with the sums of TDPBF16PS but for subnormal numbers.
func AMX() kernels.Level {
	return kernels.Level{Name: "portableamx", Table: unsafe.Pointer(&C.pb_level_portableamx)}
}
