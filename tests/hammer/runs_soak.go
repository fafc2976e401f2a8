//go:build soak

package hammer

// Runs is how often `make soak` executes a target.
const Runs = 10_000_000

const repeated = 0
