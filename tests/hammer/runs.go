//go:build !soak && !race

package hammer

// Runs is how often `make test` executes a target; runs_soak.go has the number for `make soak`.
const Runs = 20_000

// repeated is the seed of every run; 0 takes one from the clock.
const repeated = 1
