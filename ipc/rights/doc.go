// Package rights says who may do what on a NATS server that carries Patchbay: roles, their subjects, and the
// nats-server configuration that grants them. It knows the names on NATS but talks to no server.
package rights
