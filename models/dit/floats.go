package dit

import (
	"fmt"
	"sync"

	"patchbay/engine"
)

// Floats are values that are sent to other processes as one piece, as little-endian f32. nil stays nil.
type Floats []float32

// MarshalBinary implements encoding.BinaryMarshaler. The result shares f's memory.
func (f Floats) MarshalBinary() ([]byte, error) {
	return engine.FromF32(f, len(f)).Buf.Host, nil
}

func (f *Floats) UnmarshalBinary(b []byte) error {
	if len(b)%4 != 0 {
		return fmt.Errorf("a vector of %d bytes: want a multiple of 4", len(b))
	}
	*f = make(Floats, len(b)/4)
	engine.Widen(*f, b, engine.F32)
	return nil
}

// undefined is what Undefined returns parts of.
var undefined struct {
	sync.Mutex
	all Floats
}

// Undefined returns n numbers for a recording, which looks at their count alone. All callers share their memory, which
// must not be written to.
func Undefined(n int) Floats {
	undefined.Lock()
	defer undefined.Unlock()
	if n > len(undefined.all) {
		undefined.all = make(Floats, n)
	}
	return undefined.all[:n:n]
}
