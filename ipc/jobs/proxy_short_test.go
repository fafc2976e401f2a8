//go:build !soak

package jobs

// proxyRuns is how many runs lose a message in the short form.
const proxyRuns = 5
