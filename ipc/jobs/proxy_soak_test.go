//go:build soak

package jobs

// proxyRuns is how many messages are lost in the long form.
const proxyRuns = 200
