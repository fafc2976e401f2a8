//go:build soak

package hammer

// Runs is how often a target is executed in `make soak`.
const Runs = 10_000_000

const repeated = 0
