//go:build !soak

package jobs

// proxyRuns is how many messages are lost in the short form.
const proxyRuns = 5
