package parallel

import (
	"context"

	"patchbay/engine"
)

// Observe is told of progress after every step; an error stops the run with that error.
type Observe func(Progress) error

// Local is what Engine.Do lends to one piece of work on one rank: text encoders, VAE, anything that is not the denoise loop.
type Local struct {
	Ops engine.Ops
	// Arena returns activation memory of at least the given bytes, valid until Do returns.
	Arena func(bytes int) (*engine.Arena, error)
	// Check returns the context's error once the job is cancelled; long work calls it between layers.
	Check func() error
}

var _ = context.Background
