// Package ipc turns bytes into jobs and jobs into bytes: messages, frames, carriers, the job table and the workers that run jobs.
//
// A request arrives on a Carrier (NATS, unix socket, stdio) as one msgpack or JSON map. Guard looks at its lengths and depth before anything is
// decoded; Decode and Bind make a typed request of it (message.go). Service answers the verbs; run and submit become a Record in Jobs, the one
// table of jobs, where every change of state is a compare-and-swap and every reply and event is read from the job's event log. One dispatcher takes
// queued jobs to an Executor: in the daemon that is a supervised child process (supervisor.go), in a worker it is the node package
// (local.go). The worker answers the very same protocol on its stdin and stdout, so a host may start one itself and needs no daemon.
//
// The files in reading order: guard, decode, bind, encode, errors, message, body, frame; record, jobs, cursor, dispatch; output; service, verbs;
// carrier, conn, socket, stdio, embedded, nats; executor, local, link, supervisor, worker; client. Who may do what: access, permissions, bounds, peek; what is
// counted: meter, meter_http, trace. The wire format is written down in docs/protocol.md, rights and limits in docs/security.md.
package ipc
