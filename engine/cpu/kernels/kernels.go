// Package kernels holds the C kernels of engine/cpu, compiled once for each instruction set. It imports no other
// package of the program, so that changes to Go code do not recompile the kernels, which take most of the time of a
// cold build.
//
// Read kernels.h (arguments of every kernel), vec.h and bf16.h (the only files that know instruction sets),
// microkernel.h (the register tile that all products end in), tiles.h (its AMX form), gemm.h, conv.h and attention.h.
// level_*.c compile the same kernels for generic (portable), avx2, avx512, avx512bf16 and amx. engine/cpu/emulated
// compiles the last three for any processor, for tests. Under the race detector, which cannot see into C code, avx512,
// avx512bf16 and amx are left out, and on x86 generic is compiled with few optimizations.
package kernels

/*
#cgo CFLAGS: -std=c11 -O3 -g1 -Wall -Wextra -Wno-psabi
#cgo race CFLAGS: -DPB_RACE
#cgo LDFLAGS: -lm
#include "kernels.h"
*/
import "C"

import "unsafe"

// Level is the kernels of one instruction set.
type Level struct {
	Name  string
	Table unsafe.Pointer // the pb_kernels of kernels.h, constant; nil where this CPU lacks an instruction
}

// Levels lists every level in the program, best last. "generic" is the first one and runs on every CPU.
func Levels() []Level {
	var out []Level
	for i := C.int(0); ; i++ {
		name := C.pb_level_name(i)
		if name == nil {
			return out
		}
		out = append(out, Level{C.GoString(name), unsafe.Pointer(C.pb_level(i))})
	}
}
