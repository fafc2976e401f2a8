package value

import (
	"fmt"

	"patchbay/engine"
	"patchbay/models/weights"
)

// Compute is the setting that decides in which type the denoise loop keeps its activations.
type Compute string

// The values of Compute: F32 (also the empty value) is required for parity with ComfyUI on a CPU; BF16 halves
// activations and exchanges; Auto is BF16 where the device is faster in it and most of the file's weights are packed as
// bf16 (on GPUs f16 counts too), else F32.
const (
	ComputeF32  Compute = "f32"
	ComputeBF16 Compute = "bf16"
	ComputeAuto Compute = "auto"
)

// ParseCompute parses the value of a command-line flag.
func ParseCompute(text string) (Compute, error) {
	switch c := Compute(text); c {
	case ComputeF32, ComputeBF16, ComputeAuto:
		return c, nil
	}
	return "", fmt.Errorf("%q: want auto, f32 or bf16", text)
}

// Of returns the activation type for a model on a device. On GPUs f32 has no tensor cores, so f16 weights are used with
// bf16 activations, which costs them three bits (docs/gpu.md).
func (c Compute) Of(device string, m *Model) engine.DType {
	fits := m.narrow || m.half && device == "cuda"
	if c == ComputeBF16 || c == ComputeAuto && fits && fasterBF16(device) {
		return engine.BF16
	}
	return engine.F32
}

// widths returns two reports on the packed weights of a set: narrow, whether most bytes are bf16 (bf16 itself, or fp8
// and blocks, which are widened to it) or i8, whose products do not depend on the activation type; half, whether most
// are once f16 is counted as well.
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
