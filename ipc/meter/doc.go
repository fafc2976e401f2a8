// Package meter counts what jobs and requests do, for the verb stats, for /metrics and for lines of the log. It sees
// events and refusals pass and keeps no job.
//
// Reading order: meter, http, trace.
package meter
