//go:build cgo && (!emulated || race)

// Package emulated has no levels without the build tag emulated, and none under the race detector, which cannot see
// into C code.
package emulated

import "patchbay/engine/cpu/kernels"

// AVX512 returns a level without kernels.
func AVX512() kernels.Level { return kernels.Level{Name: "portable512"} }

// AVX512BF16 returns a level without kernels.
func AVX512BF16() kernels.Level { return kernels.Level{Name: "portable512bf16"} }

// AMX returns a level without kernels.
func AMX() kernels.Level { return kernels.Level{Name: "portableamx"} }
