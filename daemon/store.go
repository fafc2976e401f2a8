package daemon

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"patchbay/ipc/message"
	"patchbay/ipc/wire"
	"patchbay/node/files"
)

// lockStore creates the store folder and locks it: two daemons on one store would destroy each other's files. The
// returned function unlocks it.
func lockStore(dir string) (func(), error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, fmt.Errorf("store: %w", err)
	}
	f, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("store: %w", err)
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		busy := fmt.Errorf("store %s is used by another daemon; choose another with --store, or talk to that one", dir)
		return nil, errors.Join(busy, f.Close())
	}
	return func() { _ = f.Close() }, nil
}

// ownName returns the name of the daemon of a store. It is generated once and kept, so that a daemon recognizes its
// jobs after a restart or a power failure.
func ownName(store string) (string, error) {
	path := filepath.Join(store, "daemon-name")
	if b, err := os.ReadFile(path); err == nil && len(b) > 0 {
		return string(b), nil
	}
	name := "d-" + wire.NewID()
	err := message.WriteSynced(path+".new", []byte(name))
	if err == nil {
		err = os.Rename(path+".new", path)
	}
	if err == nil {
		err = files.SyncFolder(store)
	}
	if err != nil {
		return "", fmt.Errorf("store: %w", err)
	}
	return name, nil
}

// Runtime tells other programs on this machine where a daemon listens.
type Runtime struct {
	PID     int    `json:"pid"`
	NATS    string `json:"nats"` // with the token, if there is one; therefore the file is 0600
	Socket  string `json:"socket,omitempty"`
	Metrics string `json:"metrics,omitempty"` // host:port
	HTTP    string `json:"http,omitempty"`    // host:port
}

// RuntimePath returns the path of the runtime file of the daemon that uses a store.
func RuntimePath(store string) string { return filepath.Join(store, "daemon.json") }

func (d *daemon) announce() error {
	r := Runtime{PID: os.Getpid(), NATS: d.cfg.NATS}
	if d.embedded != nil {
		r.NATS = d.embedded.URL()
	}
	if d.socket != nil {
		r.Socket = d.cfg.Socket
	}
	if d.metrics != nil {
		r.Metrics = d.metrics.Address()
	}
	if d.http != nil {
		r.HTTP = d.http.Address()
	}
	b, err := json.Marshal(r)
	if err != nil {
		return err
	}
	if err := replace(RuntimePath(d.cfg.Store), b); err != nil {
		return fmt.Errorf("write runtime file: %w", err)
	}
	return nil
}

// replace writes a file that only its owner may read. A reader finds the old or the new contents, never a part.
func replace(path string, b []byte) error {
	if err := os.WriteFile(path+".new", b, 0o600); err != nil {
		return err
	}
	return os.Rename(path+".new", path)
}

func readToken(flag, path string) (string, error) {
	if path == "" {
		return "", nil
	}
	b, err := os.ReadFile(path)
	if err != nil {
		return "", fmt.Errorf("%s: %w", flag, err)
	}
	token := strings.TrimSpace(string(b))
	if len(token) < 16 || strings.ContainsAny(token, " @/:") {
		return "", fmt.Errorf(
			"%s %s: want one token of 16 or more characters without space, at sign, slash and colon", flag, path)
	}
	return token, nil
}

// shortName returns a file name that stands for a path.
func shortName(path string) string {
	sum := sha256.Sum256([]byte(path))
	return hex.EncodeToString(sum[:4])
}
