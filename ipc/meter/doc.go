// Package meter counts what jobs and requests do, for the verb stats, for /metrics and for log lines. It observes
// events and refusals and keeps no job.
//
// Reading order: meter, http, trace.
package meter
