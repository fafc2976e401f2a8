package ipc

import (
	"context"
	"io"
)

// Stdio is the carrier of a process whose host talks to it over a pair of pipes or one socket. Runs are tied to it.
type Stdio struct {
	In  io.ReadCloser
	Out io.Writer
}

// Name returns "stdio".
func (c *Stdio) Name() string { return "stdio" }

// Serve implements Carrier. It returns as soon as In ends.
func (c *Stdio) Serve(ctx, drain context.Context, s *Service) error {
	return serveConn(ctx, drain, c.In, c.Out, func() { _ = c.In.Close() }, s)
}
