//go:build soak

package faults

// How much the long tests do in `make soak`.
const (
	chaosJobs    = 1000
	chaosKills   = 300
	chaosFills   = 10
	stormCancels = 16 // half of the 1,024 jobs are cancelled
	tinyJobs     = 10_000
	lossyJobs    = 300  // jobs on a network that loses messages
	clusterJobs  = 300  // of two daemons on three servers
	lossyFaults  = 1000 // random faults on it at most
	awayRounds   = 10   // how often daemons of a cluster go away
	halfOpenJobs = 100  // on a cluster with half-open cables
	halfOpenCuts = 6    // of cables between its servers
	powerJobs    = 40   // while the power fails
	powerCuts    = 4    // how often it fails
	soak         = true // whether tests without a short form run
)
