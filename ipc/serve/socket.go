package serve

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"sync"
	"time"

	"patchbay/ipc/wire"
)

// Socket is the carrier on a unix socket that only its owner may use (0600). Runs are tied to their connection.
type Socket struct {
	path string
	l    *net.UnixListener
}

// ListenSocket makes the socket. A file left by a process that is gone is replaced; one that answers is an error, as is
// a path that is not a socket.
func ListenSocket(path string) (*Socket, error) {
	if err := clearStale(path); err != nil {
		return nil, err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return nil, fmt.Errorf("socket folder: %w", err)
	}
	// Bound under another name and renamed when its mode is right, so that nobody can connect before.
	temp := fmt.Sprintf("%s.%d", path, os.Getpid())
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: temp, Net: "unix"})
	if err != nil {
		return nil, fmt.Errorf("listen on socket: %w", err)
	}
	l.SetUnlinkOnClose(false)
	if err = os.Chmod(temp, 0o600); err == nil {
		err = os.Rename(temp, path)
	}
	if err != nil {
		_ = os.Remove(temp)
		return nil, errors.Join(fmt.Errorf("listen on socket: %w", err), l.Close())
	}
	return &Socket{path: path, l: l}, nil
}

func clearStale(path string) error {
	st, err := os.Lstat(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("socket: %w", err)
	}
	if st.Mode().Type() != os.ModeSocket {
		return fmt.Errorf("socket %s: a file of that name exists and is no socket; choose another with --socket", path)
	}
	c, err := net.DialTimeout("unix", path, time.Second)
	if err == nil {
		_ = c.Close()
		return fmt.Errorf("socket %s: another daemon answers on it; choose another with --socket, or stop that one", path)
	}
	if err := os.Remove(path); err != nil {
		return fmt.Errorf("remove stale socket: %w", err)
	}
	return nil
}

// Name returns "socket" with its path.
func (c *Socket) Name() string { return "socket " + c.path }

// Serve implements Carrier. It removes the socket file when it returns.
func (c *Socket) Serve(ctx, drain context.Context, s *Service) error {
	var wg sync.WaitGroup
	defer wg.Wait()
	defer func() { _ = os.Remove(c.path) }()
	stop := context.AfterFunc(ctx, func() { _ = c.l.Close() })
	defer stop()
	for {
		nc, err := c.l.Accept()
		if err != nil {
			if ctx.Err() != nil {
				return nil
			}
			return fmt.Errorf("accept on socket: %w", err)
		}
		wg.Go(func() {
			fc := wire.ConnOf(nc)
			if err := serveConn(ctx, drain, fc, fc, func() { _ = fc.Close() }, s); err != nil {
				s.cfg.Log.Debug().Err(err).Msg("connection ended")
			}
		})
	}
}

// Close removes a socket that was never served.
func (c *Socket) Close() error {
	_ = os.Remove(c.path)
	return c.l.Close()
}
