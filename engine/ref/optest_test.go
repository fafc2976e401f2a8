package ref_test

import (
	"testing"

	"patchbay/engine/optest"
	"patchbay/engine/ref"
)

// TestConformance runs the suite on its own reference. The values agree by construction and are checked in
// formula_test.go. What this tests is that nothing outside the outputs is written, that every layout is accepted and
// that misuse panics.
func TestConformance(t *testing.T) {
	optest.Run(t, ref.New(), optest.Options{BF16: true})
}
