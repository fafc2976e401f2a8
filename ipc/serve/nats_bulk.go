package serve

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"

	"patchbay/ipc/bulk"
	"patchbay/ipc/client"
	"patchbay/ipc/message"
	"patchbay/ipc/wire"
)

// openBulk opens the connection for payloads.
func (n *NATS) openBulk() error {
	var err error
	if n.bulk, err = wire.Connect(n.cfg.URL, n.cfg.Access, n.cfg.InProcess, "patchbay daemon payloads",
		nats.ReconnectWait(250*time.Millisecond)); err != nil {
		return err
	}
	name := cmp.Or(n.cfg.Owner, wire.NewID())
	if n.blobs, err = bulk.NewBlobs(n.bulk, message.BlobRoot+name); err != nil {
		n.bulk.Close()
	}
	return err
}

// bulkTold is the size from which NATSConfig.Bulk is called for a payload.
const bulkTold = 4 << 20

// pull fetches the bytes of a reference in a request.
func (n *NATS) pull(ctx context.Context, ref *wire.Ref) (*bulk.Region, error) {
	if n.cfg.Bulk != nil && ref.Bytes >= bulkTold {
		defer n.cfg.Bulk()()
	}
	return n.blobs.Pull(ctx, ref)
}

// beside returns Reply.Beside; nil if the client accepts no references.
func (n *NATS) beside(header nats.Header, r *Call) func(*bulk.Hold) bulk.Cargo {
	if !wire.AcceptsStream(header) {
		return nil
	}
	return func(known *bulk.Hold) bulk.Cargo {
		// a reply may lie in the memory of its request
		offer := func(data []byte) (*wire.Ref, error) { return n.blobs.Offer(data, known, r.hold), nil }
		return &bulk.NATSCargo{Offer: offer, Drop: n.blobs.Drop}
	}
}

// Fetch returns the files of a job that another daemon on the same server has run.
func (n *NATS) Fetch(ctx context.Context, job string) ([]message.File, error) {
	ctx, cancel := context.WithTimeout(ctx, fetchTime)
	defer cancel()
	c := client.NewNATSClient(n.nc)
	defer func() { _ = c.Close() }()
	files, err := client.Fetch(ctx, c, job)
	if err != nil {
		return nil, fmt.Errorf("fetch files of job %s from the daemon that ran it: %w", job, err)
	}
	return files, nil
}

// fetchTime bounds the transfer of a job's files from one daemon to another.
const fetchTime = time.Minute
