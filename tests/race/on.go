//go:build race

package race

// Enabled reports whether the race detector watches.
const Enabled = true
