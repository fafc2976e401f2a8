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

	"github.com/rs/zerolog"

	"patchbay/ipc/wire"
)

// Socket is the carrier on a unix socket that only its owner may use (0600). Runs are cancelled when their connection
// ends.
type Socket struct {
	path string

	mu sync.Mutex
	l  *net.UnixListener
}

// ListenSocket creates the socket and replaces a file left by a dead process. It returns an error if a process answers
// on the path, or if the path is not a socket.
func ListenSocket(path string) (*Socket, error) {
	if err := clearStale(path); err != nil {
		return nil, err
	}
	l, err := bind(path)
	if err != nil {
		return nil, err
	}
	return &Socket{path: path, l: l}, nil
}

// bind creates the file of a socket, and its folder.
func bind(path string) (*net.UnixListener, error) {
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
	return l, nil
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

// Serve implements Carrier. It removes the socket file when it returns, and creates it again if somebody else removes
// it. When descriptors run out, it goes on accepting as soon as there are some.
func (c *Socket) Serve(ctx, drain context.Context, s *Service) error {
	var wg sync.WaitGroup
	defer wg.Wait()
	defer func() { _ = os.Remove(c.path) }()
	stop := context.AfterFunc(ctx, func() { _ = c.listener().Close() })
	defer stop()
	wg.Go(func() { c.watch(ctx, s.cfg.Log) })
	for pause := time.Duration(0); ; {
		l := c.listener()
		nc, err := l.AcceptUnix()
		switch {
		case ctx.Err() != nil:
			if err == nil {
				_ = nc.Close()
			}
			return nil
		case err != nil && c.listener() != l: // the listener was replaced
			continue
		case err != nil:
			if pause == 0 {
				s.cfg.Log.Error().Err(err).Str("carrier", c.Name()).Msg("no connections are taken for now")
			}
			pause = min(max(2*pause, 5*time.Millisecond), time.Second)
			_ = wire.Pause(ctx, pause)
			continue
		}
		pause = 0
		wg.Go(func() {
			fc := wire.ConnOf(nc)
			if err := serveConn(ctx, drain, fc, fc, func() { _ = fc.Close() }, s.Answerer); err != nil {
				s.cfg.Log.Debug().Err(err).Msg("connection ended")
			}
		})
	}
}

func (c *Socket) listener() *net.UnixListener {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.l
}

// watch creates the file of the socket again when it is gone.
func (c *Socket) watch(ctx context.Context, log zerolog.Logger) {
	for range wire.Every(ctx, socketEvery) {
		if _, err := os.Lstat(c.path); !errors.Is(err, os.ErrNotExist) {
			continue
		}
		l, err := bind(c.path)
		if err != nil {
			log.Warn().Err(err).Msg("the socket file is gone and cannot be made again yet")
			continue
		}
		c.mu.Lock()
		old := c.l
		c.l = l
		c.mu.Unlock()
		_ = old.Close()
		if ctx.Err() != nil { // Serve ended meanwhile, and closed the old one
			_ = l.Close()
			_ = os.Remove(c.path)
			return
		}
		log.Warn().Str("carrier", c.Name()).Msg("the socket file was gone; it was made again")
	}
}

// socketEvery is the time between checks whether the file of the socket exists.
const socketEvery = time.Second

// Close removes a socket that was never served.
func (c *Socket) Close() error {
	_ = os.Remove(c.path)
	return c.l.Close()
}
