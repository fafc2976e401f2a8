// Package worker runs jobs in processes that own devices: the daemon's side keeps a child process alive and passes
// requests on to it, the child's side answers the same protocol and hands jobs to the runner. It knows the two ends and
// nothing of where requests come from.
//
// Reading order: supervisor, child; worker, local, local_sample, stats.
package worker
