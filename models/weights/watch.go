package weights

import "patchbay/engine/datafile"

// Watched returns the same tensors as s, but calls read with every range of elements [lo, hi) before it is taken from a
// tensor. Nothing can be read unseen.
func (s *Set) Watched(read func(name string, lo, hi int)) *Set {
	return s.view(func(name string, t Stored) (string, Stored, bool) {
		from := t
		t.Data, t.span, t.packed = nil, datafile.Span{}, nil
		t.make = func(dst []byte, lo, hi int) {
			read(name, lo, hi)
			from.put(dst, lo, hi)
		}
		return name, t, true
	})
}
