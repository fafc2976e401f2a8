package client

import (
	"context"

	"patchbay/fault"
	"patchbay/ipc/bulk"
	"patchbay/ipc/wire"
)

// encode encodes a request. Large tensors and bytes are offered beside it, smaller ones too if it is still too large.
func (c *NATSClient) encode(body any, cargo *bulk.NATSCargo) ([]byte, error) {
	limit := int(c.nc.MaxPayload()) - 1024
	for _, least := range []int{wire.BulkBytes, wire.SmallBytes} {
		parts, err := wire.EncodeBeside(body, wire.Msgpack, cargo.Put, min(least, limit/2))
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
		cargo.Done(false)
	}
	return nil, fault.New(fault.TooLarge,
		"the request has more than the %d bytes that the server takes, without its tensors and files", limit)
}

// Payloads returns the payload transfers of this connection, created on first use.
func (c *NATSClient) Payloads() (*bulk.Blobs, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	var err error
	if c.blobs == nil {
		c.blobs, err = bulk.NewBlobs(c.nc, c.nc.NewInbox())
	}
	return c.blobs, err
}

func (c *NATSClient) offer(data []byte) (*wire.Ref, error) {
	b, err := c.Payloads()
	if err != nil {
		return nil, err
	}
	return b.Offer(data), nil
}

func (c *NATSClient) drop(ref *wire.Ref) {
	if b, err := c.Payloads(); err == nil {
		b.Drop(ref)
	}
}

// pull fetches the bytes that a reply refers to.
func (c *NATSClient) pull(ctx context.Context, ref *wire.Ref) (*bulk.Region, error) {
	b, err := c.Payloads()
	if err != nil {
		return nil, err
	}
	return b.Pull(ctx, ref)
}
