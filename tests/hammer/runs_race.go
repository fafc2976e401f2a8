//go:build !soak && race

package hammer

// Runs is how often a target is executed under the race detector, which is ten times as slow and looks for other
// faults.
const Runs = 2_000

const repeated = 1
