// Package serve answers requests: carriers (NATS, unix socket, stdio) bring them to one Service, which checks them,
// puts jobs into the table or asks an executor, and streams what becomes of them. It knows verbs and clients; jobs are
// kept, bytes are moved and devices are used elsewhere.
//
// Reading order: carrier, service, verbs, stream, exec, sample, limits; conn, socket, stdio; nats, nats_bulk; schema.
package serve
