// Package broker is the NATS server inside a daemon, and who may do what on any NATS server: its streams' folder and
// its recovery from a full disk, users, rights and the configuration that says so. It knows the names on NATS and none
// of what is sent on them.
//
// Reading order: embedded, recovery, permissions.
package broker
