//go:build !race

// Package race says whether the race detector watches. It slows Go tenfold, so a test of the same goroutines as another
// one asks, and skips. Only tests import it.
package race

// Enabled reports whether the race detector watches.
const Enabled = false
