package value

import (
	"fmt"

	"patchbay/engine"
	"patchbay/models/weights"
)

// Compute says in which type the denoise loop keeps its activations.
type Compute string

// The values of Compute: F32 (also the empty value) is what parity with ComfyUI on a processor needs; BF16 halves
// activations and exchanges; Auto is BF16 where the device is faster in it and the file's weights are packed
// as bf16 (on GPUs f16 too), else F32.
const (
	ComputeF32  Compute = "f32"
	ComputeBF16 Compute = "bf16"
	ComputeAuto Compute = "auto"
)

// ParseCompute reads the value of a flag.
func ParseCompute(text string) (Compute, error) {
	switch c := Compute(text); c {
	case ComputeF32, ComputeBF16, ComputeAuto:
		return c, nil
	}
	return "", fmt.Errorf("%q: want auto, f32 or bf16", text)
}

// of returns the type for a model on a device. f32 has no tensor cores on a GPU, so that f16 weights meet bf16
// activations there and lose three bits, which the metrics count.
func (c Compute) of(device string, m *Model) engine.DType {
	fits := m.narrow || m.half && device == "cuda"
	if c == ComputeBF16 || c == ComputeAuto && fits && fasterBF16(device) {
		return engine.BF16
	}
	return engine.F32
}

// widths reports whether most bytes of a set are packed as bf16 (bf16 as it is, fp8 and blocks widened to it) or as i8,
// whose products do not depend on the type, and whether most are with those of f16.
func widths(set *weights.Set) (narrow, half bool) {
	var sixteen, f16, all int64
	for _, name := range set.Names() {
		t, _ := set.Get(name)
		all += t.Bytes()
		switch t.DType {
		case engine.BF16, engine.F8E4M3, engine.F8E5M2, engine.I8:
			sixteen += t.Bytes()
		case engine.F16:
			f16 += t.Bytes()
		}
	}
	return 2*sixteen > all, 2*(sixteen+f16) > all
}
