package dit

import (
	"encoding/binary"
	"fmt"
)

// Floats are values that travel between processes in one piece, as little-endian f32. None are none there too.
type Floats []float32

// MarshalBinary implements encoding.BinaryMarshaler.
func (f Floats) MarshalBinary() ([]byte, error) {
	return binary.Append(nil, binary.LittleEndian, []float32(f))
}

// UnmarshalBinary implements encoding.BinaryUnmarshaler.
func (f *Floats) UnmarshalBinary(b []byte) error {
	if len(b)%4 != 0 {
		return fmt.Errorf("a vector of %d bytes: want a multiple of 4", len(b))
	}
	*f = make(Floats, len(b)/4)
	_, err := binary.Decode(b, binary.LittleEndian, []float32(*f))
	return err
}
