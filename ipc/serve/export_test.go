package serve

import (
	"context"

	"patchbay/ipc/bulk"
	"patchbay/ipc/message"
)

// Knows reports whether the service knows of a handle, and how many it knows.
func (s *Service) Knows(handle string) (known bool, count int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, known = s.owners[handle]
	return known, len(s.owners)
}

// Blobs are the streams of the carrier.
func (n *NATS) Blobs() *bulk.Blobs { return n.blobs }

// Subscriptions returns the number of subscriptions on the connection for requests.
func (n *NATS) Subscriptions() int { return n.nc.NumSubscriptions() }

// FetchFiles is how files are fetched from another daemon for a client.
func (s *Service) FetchFiles(ctx context.Context, reply *Reply, job string) ([]message.File, error) {
	return s.fetchFiles(ctx, reply, job)
}
