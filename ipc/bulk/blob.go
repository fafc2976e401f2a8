package bulk

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"

	"patchbay/fault"
	"patchbay/ipc/wire"
)

// The stream of chunks: the side that has bytes offers them under a subject, the side that wants them pulls. A pull
// names the subject for the chunks and how many may be in flight; every chunk names a subject for credits. Neither
// side holds more than the window, and a side that falls silent is given up.
const (
	ChunkBytes  = 512 << 10
	ChunkWindow = 16
	chunkHead   = 16               // u32 number, u32 CRC-32 (IEEE) of the data, u64 offset, all big-endian
	maxSending  = 64               // concurrent transfers
	bulkTotal   = int64(4) << 30   // bytes being pulled or held for requests at a time
	Patience    = 10 * time.Minute // for everything that one request refers to
)

// PullRequest asks for the chunks of an offer, in msgpack or JSON.
type PullRequest struct {
	ID     string `json:"id"`
	Chunk  int    `json:"chunk"`  // most bytes of one chunk
	Window int    `json:"window"` // most chunks in flight without a credit
}

// parsePull decodes a pull and refuses unreasonable chunk sizes and windows.
func parsePull(body []byte) (PullRequest, error) {
	var q PullRequest
	enc, ok := wire.Sniff(body)
	if !ok {
		return q, fmt.Errorf("a pull is a map {id, chunk, window} in msgpack or JSON")
	}
	err := wire.Read(body, enc, wire.Limits{Bytes: 4096, Depth: 4, Items: 32}, &q)
	if err == nil && (q.Chunk < 4096 || q.Window < 1 || q.Window > 1024) {
		err = fmt.Errorf("a pull of chunks of %d bytes with a window of %d", q.Chunk, q.Window)
	}
	return q, err
}

// headerFault is the header that says why a pull was refused.
const headerFault = "Patchbay-Error"

// Blobs offers bytes on a connection and pulls those of others. Blobs is safe for concurrent use.
type Blobs struct {
	nc      *nats.Conn
	base    string // its subjects: <base>.get, <base>.ack.<transfer>, <base>.put.<transfer>
	subs    []*nats.Subscription
	Silence time.Duration // after which the other side is given up
	Life    time.Duration // of an offer that nobody pulls
	taken   atomic.Int64  // bytes of unreleased regions from region

	mu      sync.Mutex
	offers  map[string]*offer
	sending map[string]chan uint32
	wg      sync.WaitGroup
	stop    context.CancelFunc
	ctx     context.Context
}

// offer is something that may be pulled, until it has been pulled or its time is over.
type offer struct {
	data  []byte
	holds []*Hold
	timer *time.Timer
}

// NewBlobs subscribes to subjects that begin with base and answers pulls there, until Close.
func NewBlobs(nc *nats.Conn, base string) (*Blobs, error) {
	b := &Blobs{
		nc: nc, base: base, Silence: 10 * time.Second, Life: time.Minute, offers: map[string]*offer{},
		sending: map[string]chan uint32{},
	}
	b.ctx, b.stop = context.WithCancel(context.Background())
	for subject, f := range map[string]nats.MsgHandler{base + ".get": b.get, base + ".ack.*": b.ack} {
		sub, err := nc.Subscribe(subject, f)
		if err != nil {
			b.Close()
			return nil, fmt.Errorf("offer payloads: %w", err)
		}
		b.subs = append(b.subs, sub)
	}
	return b, nil
}

// Close ends the subscriptions, withdraws all offers, stops all transfers and waits for them.
func (b *Blobs) Close() {
	for _, sub := range b.subs {
		_ = sub.Unsubscribe()
	}
	b.mu.Lock()
	b.stop() // with b.mu held: get begins no transfer after it
	for id := range b.offers {
		b.withdraw(id)
	}
	b.mu.Unlock()
	b.wg.Wait()
}

func (o *offer) retain() {
	for _, h := range o.holds {
		h.Retain()
	}
}

func (o *offer) release() {
	for _, h := range o.holds {
		h.Release()
	}
}

// Offer makes data available to be pulled, and retains the memory in which it may lie for as long.
func (b *Blobs) Offer(data []byte, memory ...*Hold) *wire.Ref {
	id := wire.NewID()
	o := &offer{data: data, holds: memory}
	o.retain()
	b.mu.Lock()
	b.offers[id] = o
	ref := &wire.Ref{Kind: wire.RefStream, Bytes: len(data), Subject: b.base + ".get", ID: id}
	o.timer = time.AfterFunc(b.Life, func() { b.Drop(ref) })
	b.mu.Unlock()
	return ref
}

// Open returns the number of offers and transfers in progress, and the bytes of unreleased regions from region.
func (b *Blobs) Open() (transfers int, taken int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.offers) + len(b.sending), b.taken.Load()
}

// Drop withdraws the offer that ref refers to; transfers in progress continue.
func (b *Blobs) Drop(ref *wire.Ref) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.withdraw(ref.ID)
}

// withdraw is Drop by ID. The caller must hold b.mu.
func (b *Blobs) withdraw(id string) {
	o := b.offers[id]
	if o == nil {
		return
	}
	delete(b.offers, id)
	o.timer.Stop()
	o.release()
}

// get answers a pull.
func (b *Blobs) get(m *nats.Msg) {
	q, err := parsePull(m.Data)
	if m.Reply == "" || !b.mayAsk(m.Reply) {
		return
	}
	b.mu.Lock()
	of := b.offers[q.ID]
	switch {
	case err != nil:
	case of == nil || b.ctx.Err() != nil:
		err = fmt.Errorf("nothing is offered under the id %q: it was pulled, or its time is over", wire.Shown(q.ID))
	case len(b.sending) >= maxSending:
		err = fmt.Errorf("%d transfers are under way; try later", maxSending)
	}
	if err != nil {
		b.mu.Unlock()
		_ = b.nc.PublishMsg(&nats.Msg{Subject: m.Reply, Header: nats.Header{headerFault: {err.Error()}}})
		return
	}
	of.retain()
	of.timer.Stop()
	name := wire.NewID()
	credits := make(chan uint32, 64)
	b.sending[name] = credits
	b.wg.Add(1)
	b.mu.Unlock()
	go func() {
		defer b.wg.Done()
		whole := b.send(of.data, q, m.Reply, b.base+".ack."+name, credits)
		b.mu.Lock()
		delete(b.sending, name)
		of.release()
		of.timer.Reset(b.Life)
		if whole {
			b.withdraw(q.ID)
		}
		b.mu.Unlock()
	}()
}

// send sends the chunks and reports whether all were acknowledged.
func (b *Blobs) send(data []byte, q PullRequest, to, ack string, credits <-chan uint32) bool {
	size := min(q.Chunk, ChunkBytes, int(b.nc.MaxPayload())-1024)
	buf := make([]byte, chunkHead+size)
	quiet := time.NewTimer(b.Silence)
	defer quiet.Stop()
	var sent, taken uint32
	count := uint32((len(data) + size - 1) / size)
	for at := 0; taken < count; {
		if sent < count && sent-taken < uint32(q.Window) {
			n := copy(buf[chunkHead:], data[at:])
			binary.BigEndian.PutUint32(buf, sent)
			binary.BigEndian.PutUint32(buf[4:], crc32.ChecksumIEEE(buf[chunkHead:chunkHead+n]))
			binary.BigEndian.PutUint64(buf[8:], uint64(at))
			if err := b.nc.PublishMsg(&nats.Msg{Subject: to, Reply: ack, Data: buf[:chunkHead+n]}); err != nil {
				return false
			}
			at, sent = at+n, sent+1
			continue
		}
		select {
		case c := <-credits:
			if c > sent || c < taken {
				return false // an impossible credit
			}
			taken = c
			quiet.Reset(b.Silence)
		case <-quiet.C:
			return false
		case <-b.ctx.Done():
			return false
		}
	}
	return true
}

// ack handles a credit: the number of chunks that have arrived.
func (b *Blobs) ack(m *nats.Msg) {
	if len(m.Data) != 4 {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	select {
	case b.sending[wire.LastToken(m.Subject)] <- binary.BigEndian.Uint32(m.Data):
	default: // no transfer of that name, or one that gets too many credits
	}
}

// region allocates n bytes out of the budget, and the region gives them back when it is released. It fails with
// queue_full if the budget is used up.
func (b *Blobs) region(n int) (*Region, error) {
	if total := b.taken.Add(int64(n)); total > bulkTotal {
		b.taken.Add(int64(-n))
		e := fault.New(fault.QueueFull, "payloads of %d bytes are under way, with %d more it would be over %d",
			total-int64(n), n, bulkTotal)
		e.RetryAfterMS = 1000
		return nil, e
	}
	r, err := NewRegion(n)
	if err != nil {
		b.taken.Add(int64(-n))
		return nil, err
	}
	r.after = func() { b.taken.Add(int64(-n)) }
	return r, nil
}

// Pull fetches what ref refers to into memory that the caller must release.
func (b *Blobs) Pull(ctx context.Context, ref *wire.Ref) (*Region, error) {
	if ref.Subject == "" || !b.mayAsk(ref.Subject) {
		return nil, fault.New(fault.BadRequest, "a stream reference names the subject %q: want one under your inbox",
			wire.Shown(ref.Subject))
	}
	r, err := b.region(ref.Bytes)
	if err != nil {
		return nil, err
	}
	if err := b.pullInto(ctx, ref, r); err != nil {
		r.Release()
		if _, ok := errors.AsType[*fault.Error](err); !ok {
			err = fault.New(fault.BadPayload, "payload %s: %v", wire.Shown(ref.ID), err)
		}
		return nil, err
	}
	return r, nil
}

// mayAsk reports whether b may publish to a subject that the other side chose: a client may publish to any daemon, a
// daemon only to inboxes.
func (b *Blobs) mayAsk(subject string) bool {
	if wire.Answerable(b.base) { // we are a client
		return true
	}
	return wire.Answerable(subject)
}

func (b *Blobs) pullInto(ctx context.Context, ref *wire.Ref, out *Region) error {
	total := len(out.Bytes())
	chunks := b.base + ".put." + wire.NewID()
	sub, err := b.nc.SubscribeSync(chunks)
	if err != nil {
		return err
	}
	defer func() { _ = sub.Unsubscribe() }()
	size := min(ChunkBytes, int(b.nc.MaxPayload())-1024)
	// a sender that exceeds the window loses chunks, which checkChunk notices
	if err := sub.SetPendingLimits(2*ChunkWindow, 2*ChunkWindow*(ChunkBytes+chunkHead)); err != nil {
		return err
	}
	q, err := wire.EncodeMsgpack(PullRequest{ID: ref.ID, Chunk: size, Window: ChunkWindow})
	if err != nil {
		return err
	}
	if err := b.nc.PublishRequest(ref.Subject, chunks, q); err != nil {
		return err
	}
	var number uint32
	for have := 0; have < total; {
		wait, cancel := context.WithTimeout(ctx, b.Silence)
		m, err := sub.NextMsgWithContext(wait)
		cancel()
		switch {
		case errors.Is(err, nats.ErrNoResponders):
			return fmt.Errorf("its sender is gone")
		case err != nil && ctx.Err() == nil:
			return fmt.Errorf("no chunk for %s after %d of %d bytes (%w)", b.Silence, have, total, err)
		case err != nil:
			return ctx.Err()
		case m.Header.Get(headerFault) != "":
			return errors.New(m.Header.Get(headerFault))
		}
		n, err := checkChunk(m.Data, number, have, size, total)
		if err != nil {
			return err
		}
		if err := write(out.fd, m.Data[chunkHead:], have); err != nil {
			return err
		}
		have, number = have+n, number+1
		if number%(ChunkWindow/4) == 0 || have == total {
			if !b.mayAsk(m.Reply) || m.Reply == "" {
				return fmt.Errorf("a chunk wants its credit at %q", m.Reply)
			}
			if err := b.nc.Publish(m.Reply, binary.BigEndian.AppendUint32(nil, number)); err != nil {
				return err
			}
		}
	}
	return nil
}

// checkChunk returns the number of data bytes of a chunk, or an error if it is not the one to come.
func checkChunk(m []byte, number uint32, have, most, total int) (int, error) {
	if len(m) <= chunkHead {
		return 0, fmt.Errorf("a chunk of %d bytes", len(m))
	}
	n := len(m) - chunkHead
	got, sum, at := binary.BigEndian.Uint32(m), binary.BigEndian.Uint32(m[4:]), binary.BigEndian.Uint64(m[8:])
	switch {
	case got < number:
		return 0, fmt.Errorf("chunk %d came twice", got)
	case got > number:
		return 0, fmt.Errorf("chunk %d is missing, %d came", number, got)
	case at != uint64(have):
		return 0, fmt.Errorf("chunk %d is for offset %d, want %d", number, at, have)
	case n > most:
		return 0, fmt.Errorf("chunk %d has %d bytes, at most %d were asked for", number, n, most)
	case n > total-have:
		return 0, fmt.Errorf("chunk %d ends at %d, the payload was to have %d bytes", number, have+n, total)
	case crc32.ChecksumIEEE(m[chunkHead:]) != sum:
		return 0, fmt.Errorf("chunk %d was damaged on its way", number)
	}
	return n, nil
}

// NATSCargo collects what goes beside one message on NATS.
type NATSCargo struct {
	Offer func(data []byte) (*wire.Ref, error)
	Drop  func(ref *wire.Ref)
	refs  []*wire.Ref
}

func (c *NATSCargo) Put(data []byte) (*wire.Ref, error) {
	ref, err := c.Offer(data)
	if ref != nil {
		c.refs = append(c.refs, ref)
	}
	return ref, err
}

// FDs implements Cargo: NATS carries no descriptors.
func (c *NATSCargo) FDs() []int { return nil }

// Done implements Cargo: if the message was not sent, its offers are withdrawn.
func (c *NATSCargo) Done(sent bool) {
	if sent {
		return
	}
	for _, r := range c.refs {
		c.Drop(r)
	}
}
