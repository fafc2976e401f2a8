//go:build !soak

package hammer

// Runs is how often a target is executed in `make test`; runs_soak.go has the number of `make soak`.
const Runs = 20_000
