// Package rights says who may do what on a NATS server that carries Patchbay: roles, their subjects, and the
// configuration of nats-server that grants them. It knows the names on NATS and no server.
package rights
