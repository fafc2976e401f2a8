//go:build !soak

package faults

// How much the long tests do in `make test-all`; sizes_soak_test.go has the numbers of `make soak`.
const (
	chaosJobs    = 30 // jobs of one storm
	chaosKills   = 12 // processes killed meanwhile
	chaosFills   = 1  // how often writes fail for a while
	stormCancels = 4  // jobs of each of 64 clients that cancel at random
	tinyJobs     = 600
	lossyJobs    = 3     // jobs on a network that loses messages
	clusterJobs  = 40    // of two daemons on three servers
	lossyFaults  = 8     // random faults on it at most
	awayRounds   = 1     // how often daemons of a cluster go away
	halfOpenJobs = 12    // on a cluster with half-open cables
	halfOpenCuts = 1     // of cables between its servers
	powerJobs    = 6     // while the power fails
	powerCuts    = 1     // how often it fails
	soak         = false // whether tests without a short form run
)
