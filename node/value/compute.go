package value

import (
	"fmt"

	"patchbay/engine"
	"patchbay/models/weights"
)

// Compute says in which type the denoise loop keeps its activations.
type Compute string

// The values of Compute: F32 (also the empty value) is what parity with ComfyUI on a processor needs; BF16 halves
// activations and exchanges; Auto is BF16 where the device multiplies bf16 natively and the file's weights are packed
// as bf16, else F32.
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

// nativeBF16 lists the operations (engine.Ops.Name) that multiply bf16 faster than f32.
func nativeBF16(name string) bool { return name == "cpu/avx512bf16" || name == "cuda" }

// of returns the type for a model on a device.
func (c Compute) of(device string, m *Model) engine.DType {
	if c == ComputeBF16 || c == ComputeAuto && nativeBF16(device) && m.narrow {
		return engine.BF16
	}
	return engine.F32
}

// packsNarrow reports whether most bytes of a set are packed as bf16 (bf16 as it is, fp8 and blocks widened to it) or
// as i8, whose products do not depend on the type.
func packsNarrow(set *weights.Set) bool {
	var narrow, all int64
	for _, name := range set.Names() {
		t, _ := set.Get(name)
		all += t.Bytes()
		switch t.DType {
		case engine.BF16, engine.F8E4M3, engine.F8E5M2, engine.I8:
			narrow += t.Bytes()
		}
	}
	return 2*narrow > all
}
