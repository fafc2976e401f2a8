package bulk

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"patchbay/fault"
	"patchbay/ipc/wire"
)

// BlobBucket is the object store for payloads that outlive a connection.
const BlobBucket = "patchbay-blobs"

// blobTTL is how long an object is kept.
const blobTTL = 24 * time.Hour

// uploadWindow bounds the chunks of one upload that the server has not yet acknowledged. An upload without a bound
// overruns the server's buffer of a stream when the machine is busy, and is then refused.
const uploadWindow = 8

// Objects is the bucket of payloads on one connection.
type Objects struct {
	nc *nats.Conn
	js jetstream.JetStream
}

// NewObjects returns the bucket, which need not exist yet.
func NewObjects(nc *nats.Conn) (*Objects, error) {
	js, err := jetstream.New(nc, jetstream.WithPublishAsyncMaxPending(uploadWindow))
	if err != nil {
		return nil, err
	}
	return &Objects{nc: nc, js: js}, nil
}

// Create creates the bucket if it does not exist.
func (o *Objects) Create(ctx context.Context) error {
	_, err := o.js.CreateOrUpdateObjectStore(ctx,
		jetstream.ObjectStoreConfig{Bucket: BlobBucket, Description: "payloads of patchbay", TTL: blobTTL})
	return err
}

// Put uploads bytes under a name, in batches of uploadWindow chunks. The layout is that of NATS object stores
// (ADR-20), so that `nats object get` reads it.
func (o *Objects) Put(ctx context.Context, name string, data []byte) (*wire.Ref, error) {
	id := wire.NewID()
	size := min(ChunkBytes, int(o.nc.MaxPayload())-1024)
	sum := sha256.New()
	chunks := 0
	var acks []jetstream.PubAckFuture
	for at := 0; at < len(data); at += size {
		piece := data[at:min(at+size, len(data))]
		_, _ = sum.Write(piece) // a hash never fails
		ack, err := o.js.PublishMsgAsync(&nats.Msg{Subject: "$O." + BlobBucket + ".C." + id, Data: piece},
			jetstream.WithStallWait(30*time.Second))
		if err != nil {
			return nil, fmt.Errorf("upload %s: %w", name, err)
		}
		acks = append(acks, ack)
		if chunks++; len(acks) == uploadWindow {
			if err := confirmed(ctx, acks); err != nil {
				return nil, fmt.Errorf("upload %s: %w", name, err)
			}
			acks = acks[:0]
		}
	}
	if err := confirmed(ctx, acks); err != nil {
		return nil, fmt.Errorf("upload %s: %w", name, err)
	}
	digest := sum.Sum(nil)
	info, err := json.Marshal(map[string]any{
		"name": name, "bucket": BlobBucket, "nuid": id, "size": len(data), "chunks": chunks, "mtime": time.Now().UTC(),
		"digest": "SHA-256=" + base64.URLEncoding.EncodeToString(digest), "options": map[string]any{"max_chunk_size": size},
	})
	if err != nil {
		return nil, err
	}
	_, err = o.js.PublishMsg(ctx, &nats.Msg{
		Subject: "$O." + BlobBucket + ".M." + base64.URLEncoding.EncodeToString([]byte(name)), Data: info,
		Header: nats.Header{jetstream.MsgRollup: {jetstream.MsgRollupSubject}},
	})
	if err != nil {
		return nil, fmt.Errorf("upload %s: %w", name, err)
	}
	return &wire.Ref{Kind: wire.RefObject, Bytes: len(data), Name: name, SHA256: hex.EncodeToString(digest)}, nil
}

func confirmed(ctx context.Context, acks []jetstream.PubAckFuture) error {
	for _, a := range acks {
		select {
		case <-a.Ok():
		case err := <-a.Err():
			return err
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

// Get fetches an object into memory from room. It checks the size before that and the digest after it.
func (o *Objects) Get(ctx context.Context, ref *wire.Ref, room func(int) (*Region, error)) (*Region, error) {
	store, err := o.js.ObjectStore(ctx, BlobBucket)
	if err != nil {
		return nil, fault.New(fault.BadPayload, "object %q: no bucket %s: %v", ref.Name, BlobBucket, err)
	}
	res, err := store.Get(ctx, ref.Name)
	if err != nil {
		return nil, fault.New(fault.BadPayload, "object %q: %v; objects are kept for %s", ref.Name, err, blobTTL)
	}
	defer func() { _ = res.Close() }()
	info, err := res.Info()
	if err != nil {
		return nil, fault.New(fault.BadPayload, "object %q: %v", ref.Name, err)
	}
	if info.Size != uint64(ref.Bytes) {
		return nil, fault.New(fault.BadPayload, "object %q has %d bytes, the reference says %d", ref.Name,
			info.Size, ref.Bytes)
	}
	r, err := room(ref.Bytes)
	if err != nil {
		return nil, err
	}
	_, err = io.ReadFull(res, r.Bytes())
	if err == nil {
		var more int
		if more, err = res.Read(make([]byte, 1)); more > 0 || errors.Is(err, io.EOF) { // EOF checks the digest
			err = nil
		}
	}
	if sum := sha256.Sum256(r.Bytes()); err == nil && ref.SHA256 != "" && hex.EncodeToString(sum[:]) != ref.SHA256 {
		err = fmt.Errorf("its SHA-256 is %x, the reference says %s", sum, ref.SHA256)
	}
	if err != nil {
		r.Release()
		return nil, fault.New(fault.BadPayload, "object %q: %v", ref.Name, err)
	}
	return r, nil
}
