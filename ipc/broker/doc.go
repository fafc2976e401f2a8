// Package broker is the NATS server inside a daemon, and who may do what on any NATS server: its streams' folder and its healing, users, rights and the
// configuration that says so. It knows the names on NATS and none of what is sent on them.
//
// Reading order: embedded, heal, permissions.
package broker
