package weights

// Watched returns the same tensors as s and calls read with every range of elements [lo, hi) that is taken from one of
// them, before it is. What is read is copied, so that nothing can be taken unseen.
func (s *Set) Watched(read func(name string, lo, hi int)) *Set {
	return s.view(func(name string, t Stored) (string, Stored, bool) {
		from := t
		t.Data, t.packed = nil, nil
		t.make = func(dst []byte, lo, hi int) {
			read(name, lo, hi)
			from.put(dst, lo, hi)
		}
		return name, t, true
	})
}
