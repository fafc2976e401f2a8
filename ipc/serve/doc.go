// Package serve answers requests: carriers (NATS, unix socket, stdio) bring them to an Answerer. That of a daemon is
// its Service, which checks them, puts jobs into the table or calls an executor, and streams the results. It knows
// verbs and clients; storing jobs, moving bytes and using devices is left to other packages. Live runs a service with
// its carriers, from the start of a daemon to its end.
//
// Reading order: carrier, answerer, service, verbs, stream, exec, sample, limits; direct; open, conn, socket, stdio;
// nats, nats_bulk; schema; life.
package serve
