// Package broker is the NATS server inside a daemon: its streams' folder, who is let in, and its recovery from a full
// disk. It knows none of what is sent on it.
//
// Reading order: embedded, recovery.
package broker
