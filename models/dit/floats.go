package dit

import (
	"fmt"

	"patchbay/engine"
)

// Floats are values that are sent to other processes as one piece, as little-endian f32. nil stays nil.
type Floats []float32

// MarshalBinary implements encoding.BinaryMarshaler. The result shares f's memory.
func (f Floats) MarshalBinary() ([]byte, error) {
	return engine.FromF32(f, len(f)).Buf.Host, nil
}

// UnmarshalBinary implements encoding.BinaryUnmarshaler.
func (f *Floats) UnmarshalBinary(b []byte) error {
	if len(b)%4 != 0 {
		return fmt.Errorf("a vector of %d bytes: want a multiple of 4", len(b))
	}
	*f = make(Floats, len(b)/4)
	engine.Widen(*f, b, engine.F32)
	return nil
}
