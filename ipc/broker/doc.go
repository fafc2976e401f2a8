// Package broker is the NATS server embedded in a daemon: the folder of its streams, who is let in, and its recovery
// from a full disk. It knows nothing about the messages that it carries.
//
// Reading order: embedded, users, login, recovery.
package broker
