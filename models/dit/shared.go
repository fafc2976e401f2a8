package dit

// Shared is a handle on a Model that has other users too.
type Shared struct {
	Model
	Free func() // releases the handle
}

// Close releases the handle. The model closes with its last user.
func (s *Shared) Close() { s.Free() }

// As returns the Control, Follower, Patch or Task that m is, itself or behind a Shared.
func As[T Model](m Model) (T, bool) {
	if s, ok := m.(*Shared); ok {
		m = s.Model
	}
	t, ok := m.(T)
	return t, ok
}
