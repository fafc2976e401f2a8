package dit

// Shared is a Model that others use too.
type Shared struct {
	Model
	Free func() // gives the model back
}

// Close gives the model back.
func (s *Shared) Close() { s.Free() }

// As finds the Control, Patch or Task that a model is, by itself or Shared.
func As[T Model](m Model) (T, bool) {
	if s, ok := m.(*Shared); ok {
		m = s.Model
	}
	t, ok := m.(T)
	return t, ok
}
