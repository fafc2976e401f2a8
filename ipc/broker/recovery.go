package broker

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/nats-io/nats-server/v2/server"

	"patchbay/ipc/message"
)

// A stream of the NATS server that failed to write once refuses every write until JetStream is restarted, however much
// space there is by then. So the embedded server is watched: its log reveals the fault, new jobs are refused
// meanwhile, and JetStream is restarted once a probe file can be written. Running jobs continue; the ends of those
// that finish meanwhile are written then.

// storeReserve is the free space, in bytes, that the file system of the store must have for new jobs to be taken, so
// that those taken can be finished.
const storeReserve = 1 << 20

// probeEvery is how often a store that could not be written is probed.
const probeEvery = 250 * time.Millisecond

// storeFault reports whether a line of the server's log says that the store cannot be written.
func storeFault(line string) bool {
	for _, sign := range []string{
		"failed to store a msg", "ritical write error", "no space left on device",
		"file too large", "disk quota exceeded", "will be DISABLED",
	} {
		if strings.Contains(line, sign) {
			return true
		}
	}
	return false
}

// Full returns why the store can take no new jobs now; nil if it can.
func (e *Embedded) Full() error {
	e.mu.Lock()
	fault := e.fault
	e.mu.Unlock()
	if fault != "" {
		return fmt.Errorf("the job store in %s cannot be written: %s", e.cfg.Store, fault)
	}
	if e.gone() {
		return fmt.Errorf("the folder of the job store %s was removed: restart the daemon", e.cfg.Store)
	}
	var st syscall.Statfs_t
	if err := syscall.Statfs(e.cfg.Store, &st); err == nil && int64(st.Bavail)*st.Bsize < storeReserve {
		return fmt.Errorf("the file system of the job store %s is full", e.cfg.Store)
	}
	return nil
}

// gone reports whether the folder of the records was there and has been removed or replaced: writes now go to files
// without a name.
func (e *Embedded) gone() bool {
	st, err := os.Stat(filepath.Join(e.cfg.Store, "jetstream", "$G", "streams", "KV_"+message.JobBucket))
	e.mu.Lock()
	defer e.mu.Unlock()
	if err == nil && e.records == nil {
		e.records = st
	}
	return e.records != nil && (err != nil || !os.SameFile(st, e.records))
}

// OnRecovered sets a function that is called when the store can be written again after a fault.
func (e *Embedded) OnRecovered(f func()) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.onRecovered = f
}

// watchStore waits for faults and recovers from them, until Close.
func (e *Embedded) watchStore() {
	defer close(e.watched)
	for {
		select {
		case <-e.closing:
			return
		case line := <-e.logs.faults:
			if !e.recover(line) {
				return
			}
		}
	}
}

// recover waits until the store can be written and restarts JetStream. It returns false if the server is being closed.
func (e *Embedded) recover(fault string) bool {
	e.mu.Lock()
	e.fault = fault
	e.mu.Unlock()
	e.cfg.Log.Error().Str("store", e.cfg.Store).Str("fault",
		fault).Msg("the job store cannot be written: no new jobs until it can")
	for {
		select {
		case <-e.closing:
			return false
		case <-time.After(probeEvery):
		}
		if probe(e.cfg.Store) != nil {
			continue
		}
		if err := e.RestartJetStream(); err != nil {
			e.cfg.Log.Error().Err(err).Msg("JetStream does not start again")
			continue
		}
		break
	}
	select {
	case <-e.logs.faults: // a last fault of the old streams
	default:
	}
	e.mu.Lock()
	e.fault = ""
	tell := e.onRecovered
	e.mu.Unlock()
	e.cfg.Log.Info().Str("store", e.cfg.Store).Msg("the job store can be written again")
	if tell != nil {
		tell()
	}
	return true
}

// RestartJetStream stops JetStream and starts it again in the same folder; the connections stay.
func (e *Embedded) RestartJetStream() error {
	if err := e.srv.ShutdownJetStream(); err != nil {
		return err
	}
	return e.srv.EnableJetStream(&server.JetStreamConfig{
		StoreDir: e.cfg.Store, MaxMemory: embeddedMemory, MaxStore: EmbeddedStore, SyncAlways: e.cfg.SyncAlways,
	})
}

// probe writes and removes a file of storeReserve bytes.
func probe(dir string) error {
	path := filepath.Join(dir, "probe")
	err := message.WriteSynced(path, make([]byte, storeReserve))
	return errors.Join(err, os.Remove(path))
}
