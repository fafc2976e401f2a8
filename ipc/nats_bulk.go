package ipc

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
)

// blobRoot begins the subjects on which daemons offer and take payloads: patchbay.v1.blob.<daemon>.get, .put.<transfer> and .ack.<transfer>.
const blobRoot = subjectRoot + "blob."

// headerAccept lists the kinds of Ref that the replies to a request may hold.
const headerAccept = "Patchbay-Accept"

// openBulk makes the connection of payloads.
func (n *NATS) openBulk(opts []nats.Option) error {
	var err error
	if n.bulk, err = nats.Connect(n.cfg.URL, append(opts, nats.Name("patchbay daemon payloads"), nats.MaxReconnects(-1), nats.ReconnectWait(250*time.Millisecond))...); err != nil {
		return fmt.Errorf("connect to NATS: %w", err)
	}
	name := n.cfg.Owner
	if name == "" {
		name = NewJobID()
	}
	if n.blobs, err = newBlobs(n.bulk, blobRoot+name); err == nil {
		n.store, err = newObjects(n.bulk)
	}
	if err != nil {
		n.bulk.Close()
	}
	return err
}

// makeBucket creates the bucket of payloads where the server has JetStream.
func (n *NATS) makeBucket(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	if err := n.store.make(ctx); err != nil {
		n.cfg.Log.Debug().Err(err).Msg("no bucket for payloads")
	}
}

// bulkTold is the size from which NATSConfig.Bulk is told of a payload.
const bulkTold = 4 << 20

// pull fetches what a request refers to.
func (n *NATS) pull(ctx context.Context, ref *Ref) (*Region, error) {
	if n.cfg.Bulk != nil && ref.Bytes >= bulkTold {
		defer n.cfg.Bulk()()
	}
	if ref.Kind == RefObject {
		return n.store.get(ctx, ref, n.blobs.region)
	}
	return n.blobs.pull(ctx, ref)
}

// beside makes the place for what goes beside a reply, of the first kind that the client accepts; nil if it accepts none.
func (n *NATS) beside(header nats.Header, r *Request) func(*hold) cargo {
	for _, kind := range strings.Split(header.Get(headerAccept), ",") {
		switch strings.TrimSpace(kind) {
		case RefStream:
			return func(known *hold) cargo {
				offer := func(data []byte) (*Ref, error) { return n.blobs.offer(data, known, r.hold), nil } // a reply may lie in what its request did
				return &natsCargo{offer: offer, drop: n.blobs.drop}
			}
		case RefObject:
			return func(*hold) cargo { return &natsCargo{offer: n.upload} }
		}
	}
	return nil
}

func (n *NATS) upload(data []byte) (*Ref, error) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	return n.store.put(ctx, "out/"+NewJobID(), data)
}

func (b *blobs) drop(ref *Ref) { b.withdraw(ref.ID) }

// encode writes a request. Large tensors and bytes are offered beside it; when it is too large then, smaller ones too.
func (c *NATSClient) encode(body any, beside *natsCargo) ([]byte, error) {
	limit := int(c.nc.MaxPayload()) - 1024
	for _, least := range []int{bulkBytes, smallBytes} {
		parts, err := encodeBeside(body, Msgpack, beside.put, min(least, limit/2))
		if err != nil {
			return nil, err
		}
		if lengthOf(parts) <= limit {
			data := make([]byte, 0, lengthOf(parts))
			for _, p := range parts {
				data = append(data, p...)
			}
			return data, nil
		}
		beside.done(false)
	}
	return nil, Errorf(ErrTooLarge, "the request has more than the %d bytes that the server takes, without its tensors and files", limit)
}

// payloads are the offers of this connection, made when they are needed.
func (c *NATSClient) payloads() (*blobs, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	var err error
	if c.blobs == nil {
		c.blobs, err = newBlobs(c.nc, c.nc.NewInbox())
	}
	return c.blobs, err
}

func (c *NATSClient) offer(data []byte) (*Ref, error) {
	b, err := c.payloads()
	if err != nil {
		return nil, err
	}
	return b.offer(data), nil
}

func (c *NATSClient) drop(ref *Ref) {
	if b, err := c.payloads(); err == nil {
		b.withdraw(ref.ID)
	}
}

// pull fetches what a reply refers to.
func (c *NATSClient) pull(ctx context.Context, ref *Ref) (*Region, error) {
	b, err := c.payloads()
	if err != nil {
		return nil, err
	}
	if ref.Kind != RefObject {
		return b.pull(ctx, ref)
	}
	store, err := newObjects(c.nc)
	if err != nil {
		return nil, err
	}
	return store.get(ctx, ref, b.region)
}

// Upload puts bytes into the bucket patchbay-blobs under a name, from where requests may take them for a day: {"$bytes": ref} in place of a file of inputs.
func (c *NATSClient) Upload(ctx context.Context, name string, data []byte) (*Ref, error) {
	store, err := newObjects(c.nc)
	if err != nil {
		return nil, err
	}
	return store.put(ctx, name, data)
}
