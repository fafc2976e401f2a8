//go:build soak

package jobs

// proxyRuns is how many runs lose a message in the long form.
const proxyRuns = 200
