// Package worker runs jobs in processes that own devices: the daemon's side keeps a child process alive and passes
// requests on to it, the child's side hands them to the runner and sends what happens there into frames. It knows the
// two ends and nothing of where requests come from.
//
// Reading order: supervisor, child; worker, server, local, local_sample, stats.
package worker
