package client

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"patchbay/ipc/bulk"
	"patchbay/ipc/message"
	"patchbay/ipc/wire"
	"patchbay/node/pyjson"
)

// ErrNoDaemon is returned when nobody answers: no server, or no daemon behind it.
var ErrNoDaemon = errors.New("no daemon answers")

// NATSClient is a Client on a NATS connection. It speaks msgpack.
type NATSClient struct {
	nc       *nats.Conn
	borrowed bool // nc belongs to the caller

	mu    sync.Mutex
	live  map[*Replies][2]string // subject and inbox of every pending request
	blobs *bulk.Blobs            // nil until a payload is sent or fetched
}

// DialNATS connects to a server that needs no credentials beyond the URL; otherwise it is DialNATSAs.
func DialNATS(url string) (*NATSClient, error) { return DialNATSAs(url, wire.Access{}) }

// DialInside connects to a server in this process.
func DialInside(server nats.InProcessConnProvider) (*NATSClient, error) {
	return dialNATS("nats://inside", wire.Access{}, nats.InProcessServer(server))
}

// DialNATSAs connects to a server. It returns ErrNoDaemon if the server cannot be reached.
func DialNATSAs(url string, access wire.Access) (*NATSClient, error) { return dialNATS(url, access) }

func dialNATS(url string, access wire.Access, more ...nats.Option) (*NATSClient, error) {
	opts, err := access.Options(url)
	if err != nil {
		return nil, err
	}
	c := &NATSClient{live: map[*Replies][2]string{}}
	opts = append(opts, nats.Name("patchbay client"), nats.Timeout(3*time.Second), nats.MaxReconnects(10),
		nats.ErrorHandler(c.fault), nats.DisconnectErrHandler(c.unplugged))
	c.nc, err = wire.Dial(url, append(opts, more...)...)
	switch {
	case errors.Is(err, nats.ErrAuthorization) || errors.Is(err, nats.ErrAuthExpired) ||
		errors.Is(err, nats.ErrNkeysNotSupported):
		return nil, fmt.Errorf("the NATS server at %s refuses this user: %w; name another in the URL, or give --creds or "+
			"--nkey", wire.Redact(url), err)
	case err != nil:
		return nil, fmt.Errorf("%w at %s: %w", ErrNoDaemon, wire.Redact(url), wire.Trusted(err))
	}
	return c, nil
}

// NewNATSClient returns a client on a connection of the caller, which Close leaves open. Faults of the connection do
// not end requests.
func NewNATSClient(nc *nats.Conn) *NATSClient { return &NATSClient{nc: nc, borrowed: true} }

// Conn returns the connection of the client, for subjects that are not verbs.
func (c *NATSClient) Conn() *nats.Conn { return c.nc }

// fault ends the requests that the server does not allow: its only answer to those is an error of the connection.
func (c *NATSClient) fault(_ *nats.Conn, _ *nats.Subscription, err error) {
	if !errors.Is(err, nats.ErrPermissionViolation) {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for r, subjects := range c.live {
		for _, s := range subjects {
			if strings.Contains(err.Error(), `"`+s+`"`) {
				r.put(Reply{}, fmt.Errorf("the NATS server does not allow this user to use %s: %w", s, err))
			}
		}
	}
}

// unplugged ends all pending requests, once the replies that have come are read: others to them may be lost, and nobody
// would send them again.
func (c *NATSClient) unplugged(nc *nats.Conn, _ error) {
	c.mu.Lock()
	pending := slices.Collect(maps.Keys(c.live))
	c.mu.Unlock()
	end := func() {
		for _, r := range pending {
			r.put(Reply{}, errUnplugged)
		}
	}
	if nc.Barrier(end) != nil { // the connection was closed here
		end()
	}
}

func (c *NATSClient) Close() error {
	c.mu.Lock()
	if c.blobs != nil {
		c.blobs.Close()
	}
	c.mu.Unlock()
	if !c.borrowed {
		_ = c.nc.FlushTimeout(time.Second)
		c.nc.Close()
	}
	return nil
}

func (c *NATSClient) Ask(_ context.Context, verb, job string, body any) (*Replies, error) {
	stream := message.VerbOf(verb).Stream(nil)
	if q, ok := body.(message.JobRequest); ok {
		stream = q.Follow || q.Outputs
	}
	return c.ask(verb, job, body, stream)
}

// ask sends a request. With stream, replies come until an empty one, or until Close.
func (c *NATSClient) ask(verb, job string, body any, stream bool) (*Replies, error) {
	var data []byte
	cargo := &bulk.NATSCargo{Offer: c.offer, Drop: c.drop}
	if body != nil {
		var err error
		if data, err = c.encode(body, cargo); err != nil {
			return nil, err
		}
	}
	inbox, subject := c.nc.NewInbox(), message.VerbSubject(verb, job)
	r := newReplies(nil)
	r.pull = c.pull
	c.mu.Lock()
	if c.live == nil {
		c.live = map[*Replies][2]string{}
	}
	c.live[r] = [2]string{subject, inbox}
	c.mu.Unlock()
	forget := func() {
		c.mu.Lock()
		delete(c.live, r)
		c.mu.Unlock()
	}
	sub, err := c.nc.Subscribe(inbox, func(m *nats.Msg) { natsReply(r, m, stream) })
	if err != nil {
		forget()
		return nil, fmt.Errorf("subscribe to replies: %w", err)
	}
	r.cancel = func() {
		forget()
		_ = sub.Unsubscribe()
		cargo.Done(false)
	}
	if err := sub.SetPendingLimits(-1, -1); err != nil {
		r.Close()
		return nil, fmt.Errorf("subscribe to replies: %w", err)
	}
	err = c.nc.PublishMsg(&nats.Msg{
		Subject: subject, Reply: inbox, Data: data,
		Header: nats.Header{"Content-Type": {wire.Msgpack.ContentType()}, wire.HeaderAccept: {wire.RefStream}},
	})
	if err != nil {
		r.Close()
		return nil, fmt.Errorf("send request: %w", err)
	}
	return r, nil
}

// natsReply adds one message of an inbox to r.
func natsReply(r *Replies, m *nats.Msg, stream bool) {
	switch {
	case m.Header.Get("Status") == "503":
		r.put(Reply{}, fmt.Errorf("%w: the NATS server has no patchbay service", ErrNoDaemon))
		return
	case len(m.Data) == 0:
		r.put(Reply{}, io.EOF)
		return
	}
	o, err := natsBody(m)
	if err == nil && !stream {
		err = io.EOF
	}
	r.put(Reply{Fields: o}, err)
}

func natsBody(m *nats.Msg) (*pyjson.Object, error) {
	enc, err := wire.EncodingOf(m.Header, m.Data)
	if err != nil {
		return nil, err
	}
	o, err := wire.Decode(m.Data, enc, wire.DefaultLimits())
	if err != nil {
		err = fmt.Errorf("read reply: %w", err)
	}
	return o, err
}
