package ipc

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"patchbay/node/pyjson"
)

// ErrNoDaemon is returned when nobody answers: no server, or no daemon behind it.
var ErrNoDaemon = errors.New("no daemon answers")

// NATSClient is a Client on a NATS connection. It speaks msgpack.
type NATSClient struct {
	nc *nats.Conn

	mu    sync.Mutex
	live  map[*Replies][2]string // subject and inbox of every request that waits
	blobs *blobs                 // nil until a payload is sent or fetched
}

// DialNATS connects to a server that asks for nothing but what is in the URL. An unreachable one is ErrNoDaemon.
func DialNATS(url string) (*NATSClient, error) { return DialNATSAs(url, Access{}) }

// DialNATSAs connects to a server. An unreachable one is ErrNoDaemon.
func DialNATSAs(url string, access Access) (*NATSClient, error) {
	opts, err := access.options(url)
	if err != nil {
		return nil, err
	}
	c := &NATSClient{live: map[*Replies][2]string{}}
	opts = append(opts, nats.Name("patchbay client"), nats.Timeout(3*time.Second), nats.MaxReconnects(10), nats.ErrorHandler(c.fault))
	c.nc, err = nats.Connect(url, opts...)
	switch {
	case errors.Is(err, nats.ErrAuthorization) || errors.Is(err, nats.ErrAuthExpired) || errors.Is(err, nats.ErrNkeysNotSupported):
		return nil, fmt.Errorf("the NATS server at %s refuses this user: %w; name another in the URL, or give --creds or --nkey", redact(url), err)
	case err != nil:
		return nil, fmt.Errorf("%w at %s: %w", ErrNoDaemon, redact(url), err)
	}
	return c, nil
}

// fault ends the requests that the server does not allow: it answers those with nothing but an error of the connection.
func (c *NATSClient) fault(_ *nats.Conn, _ *nats.Subscription, err error) {
	if !errors.Is(err, nats.ErrPermissionViolation) {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for r, subjects := range c.live {
		for _, s := range subjects {
			if strings.Contains(err.Error(), `"`+s+`"`) {
				r.put(nil, fmt.Errorf("the NATS server does not allow this user to use %s: %w", s, err))
			}
		}
	}
}

// Fetch returns the files of a job that another daemon on the same server has run.
func (n *NATS) Fetch(ctx context.Context, job string) ([]File, error) {
	ctx, cancel := context.WithTimeout(ctx, fetchTime)
	defer cancel()
	files, err := Fetch(ctx, &NATSClient{nc: n.nc}, job)
	if err != nil {
		return nil, fmt.Errorf("fetch files of job %s from the daemon that ran it: %w", job, err)
	}
	return files, nil
}

// fetchTime bounds the transfer of a job's files from one daemon to another.
const fetchTime = time.Minute

// redact removes user names and tokens from a URL.
func redact(url string) string {
	scheme, rest, ok := strings.Cut(url, "://")
	if at := strings.LastIndexByte(rest, '@'); ok && at >= 0 {
		return scheme + "://" + rest[at+1:]
	}
	return url
}

// Close implements Client.
func (c *NATSClient) Close() error {
	c.mu.Lock()
	if c.blobs != nil {
		c.blobs.close()
	}
	c.mu.Unlock()
	_ = c.nc.FlushTimeout(time.Second)
	c.nc.Close()
	return nil
}

// Ask implements Client.
func (c *NATSClient) Ask(_ context.Context, verb, job string, body any) (*Replies, error) {
	stream := Streams(verb, nil)
	if q, ok := body.(jobRequest); ok {
		stream = q.Follow || q.Outputs
	}
	return c.ask(verb, job, body, stream)
}

// ask sends a request; with stream replies come until an empty one, or until Close.
func (c *NATSClient) ask(verb, job string, body any, stream bool) (*Replies, error) {
	var data []byte
	beside := &natsCargo{offer: c.offer, drop: c.drop}
	if body != nil {
		var err error
		if data, err = c.encode(body, beside); err != nil {
			return nil, err
		}
	}
	inbox, subject := c.nc.NewInbox(), VerbSubject(verb, job)
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
		beside.done(false)
	}
	if err := sub.SetPendingLimits(-1, -1); err != nil {
		r.Close()
		return nil, fmt.Errorf("subscribe to replies: %w", err)
	}
	err = c.nc.PublishMsg(&nats.Msg{Subject: subject, Reply: inbox, Data: data, Header: nats.Header{"Content-Type": {Msgpack.ContentType()}, headerAccept: {RefStream}}})
	if err != nil {
		r.Close()
		return nil, fmt.Errorf("send request: %w", err)
	}
	return r, nil
}

// natsReply sorts one message of an inbox into r.
func natsReply(r *Replies, m *nats.Msg, stream bool) {
	if m.Header.Get("Status") == "503" {
		r.put(nil, fmt.Errorf("%w: the NATS server has no patchbay service", ErrNoDaemon))
		return
	}
	if len(m.Data) == 0 {
		r.put(nil, io.EOF)
		return
	}
	o, err := natsBody(m)
	if err != nil {
		r.put(nil, err)
		return
	}
	if stream {
		r.put(o, nil)
		return
	}
	r.put(o, io.EOF)
}

func natsBody(m *nats.Msg) (*pyjson.Object, error) {
	enc, err := encodingOf(m.Header, m.Data)
	if err != nil {
		return nil, err
	}
	o, err := Decode(m.Data, enc, DefaultLimits())
	if err != nil {
		return nil, fmt.Errorf("read reply: %w", err)
	}
	return o, nil
}
