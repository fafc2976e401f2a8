package ipc

import (
	"context"

	"patchbay/ipc/wire"
)

// encode writes a request. Large tensors and bytes are offered beside it; when it is too large then, smaller ones too.
func (c *NATSClient) encode(body any, beside *natsCargo) ([]byte, error) {
	limit := int(c.nc.MaxPayload()) - 1024
	for _, least := range []int{wire.BulkBytes, wire.SmallBytes} {
		parts, err := wire.EncodeBeside(body, wire.Msgpack, beside.put, min(least, limit/2))
		if err != nil {
			return nil, err
		}
		if wire.LengthOf(parts) <= limit {
			data := make([]byte, 0, wire.LengthOf(parts))
			for _, p := range parts {
				data = append(data, p...)
			}
			return data, nil
		}
		beside.done(false)
	}
	return nil, wire.Errorf(wire.ErrTooLarge, "the request has more than the %d bytes that the server takes, without its tensors and files", limit)
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

func (c *NATSClient) offer(data []byte) (*wire.Ref, error) {
	b, err := c.payloads()
	if err != nil {
		return nil, err
	}
	return b.offer(data), nil
}

func (c *NATSClient) drop(ref *wire.Ref) {
	if b, err := c.payloads(); err == nil {
		b.withdraw(ref.ID)
	}
}

// pull fetches what a reply refers to.
func (c *NATSClient) pull(ctx context.Context, ref *wire.Ref) (*Region, error) {
	b, err := c.payloads()
	if err != nil {
		return nil, err
	}
	if ref.Kind != wire.RefObject {
		return b.pull(ctx, ref)
	}
	store, err := newObjects(c.nc)
	if err != nil {
		return nil, err
	}
	return store.get(ctx, ref, b.region)
}

// Upload puts bytes into the bucket patchbay-blobs under a name, from where requests may take them for a day: {"$bytes": ref} in place of a file of inputs.
func (c *NATSClient) Upload(ctx context.Context, name string, data []byte) (*wire.Ref, error) {
	store, err := newObjects(c.nc)
	if err != nil {
		return nil, err
	}
	return store.put(ctx, name, data)
}
