package ref_test

import (
	"testing"

	"patchbay/engine/optest"
	"patchbay/engine/ref"
)

// TestConformance runs the suite on its own judge: the values agree by construction (formula_test.go judges them), what
// is tested is that nothing outside the outputs is written, that every layout is accepted and that misuse panics.
func TestConformance(t *testing.T) {
	optest.Run(t, ref.New(), optest.Options{BF16: true})
}
