package serve

import (
	"context"
	"io"
	"os"

	"patchbay/ipc/wire"
)

// Stdio is the carrier of a process whose host talks to it over a pair of pipes or one socket. Runs are cancelled when
// that ends.
type Stdio struct {
	In  io.ReadCloser
	Out io.Writer
}

// Serve takes requests until ctx ends or In does. When ctx ends, requests under way may finish until drain ends.
func (c *Stdio) Serve(ctx, drain context.Context, a *Answerer) error {
	in, out := wire.ConnOf(c.In), wire.ConnOf(c.Out)
	switch {
	case in == nil || out == nil: // pipes take no descriptors; everything goes inside the frames
		if in != nil {
			_ = in.Close()
		}
		if out != nil {
			_ = out.Close()
		}
		return serveConn(ctx, drain, c.In, c.Out, func() { _ = c.In.Close() }, a)
	case !isFile(c.In):
		return serveConn(ctx, drain, in, out, func() { _ = in.Close() }, a)
	}
	defer func() { _ = out.Close() }()
	return serveConn(ctx, drain, in, out, func() { // in and out are duplicates of the files
		_ = in.Close()
		_ = c.In.Close()
	}, a)
}

func isFile(v any) bool {
	_, ok := v.(*os.File)
	return ok
}
