package serve

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/nats-io/nats.go/micro"
	"github.com/rs/zerolog"

	"patchbay/fault"
	"patchbay/ipc/bulk"
	"patchbay/ipc/jobs"
	"patchbay/ipc/message"
	"patchbay/ipc/wire"
)

// The name of the micro service and of its queue group.
const (
	serviceName = "patchbay"
	queueGroup  = "patchbay"
)

// NATSConfig describes the NATS carrier of a daemon.
type NATSConfig struct {
	URL    string
	Access wire.Access
	// InProcess is the server inside this process; nil: URL is dialed.
	InProcess nats.InProcessConnProvider
	Version   string            // semantic version of the program
	Facts     map[string]string // metadata of the service: devices, workers
	// Stats returns what the service shows under data in `nats service stats`.
	Stats func() any
	// Listens reports whether anybody subscribes to a subject; nil (an external server): previews are sent while
	// somebody asks for them on <subject>.on.
	Listens func(subject string) bool
	// Bulk is called when a payload of 4 MiB or more begins to arrive, and what it returns when the transfer has ended;
	// nil: nothing is called.
	Bulk  func() (done func())
	Owner string // name of this daemon, on events for other daemons; empty: there are none
	Log   zerolog.Logger
}

// NATS is the carrier on a NATS connection: a micro service, and the publisher of events and previews.
type NATS struct {
	cfg    NATSConfig
	nc     *nats.Conn
	closed chan struct{}
	ready  chan struct{} // closed when requests are answered
	out    *jobs.Publisher
	bulk   *nats.Conn // payloads go on a connection of their own: a transfer that stalls must not delay events
	blobs  *bulk.Blobs
	open   openRequests

	mu    sync.Mutex
	asked map[string]time.Time // job -> until when its previews are wanted
}

// ConnectNATS connects to a server. It returns an error if the server cannot be reached now, and reconnects forever
// later.
func ConnectNATS(cfg NATSConfig) (*NATS, error) {
	n := &NATS{cfg: cfg, closed: make(chan struct{}), ready: make(chan struct{}), asked: map[string]time.Time{}}
	log := cfg.Log
	nc, err := wire.Connect(cfg.URL, cfg.Access, cfg.InProcess, "patchbay daemon",
		nats.ReconnectWait(250*time.Millisecond), nats.PingInterval(15*time.Second),
		nats.ErrorHandler(func(_ *nats.Conn, sub *nats.Subscription, err error) {
			ev := log.Error().Err(err)
			if sub != nil {
				ev = ev.Str("subject", sub.Subject)
			}
			ev.Msg("NATS")
		}),
		nats.DisconnectErrHandler(func(c *nats.Conn, err error) {
			if err != nil { // nil: we have closed it ourselves
				log.Warn().Err(err).Msg("NATS connection lost")
				go n.logTLSErrors(c)
			}
		}),
		nats.ReconnectHandler(func(c *nats.Conn) {
			log.Info().Str("server", wire.Redact(c.ConnectedUrl())).Msg("NATS connection is back")
		}),
		nats.ClosedHandler(func(*nats.Conn) { close(n.closed) }),
	)
	if err != nil {
		return nil, err
	}
	n.nc = nc
	if err := n.openBulk(); err != nil {
		nc.Close()
		return nil, err
	}
	n.out = jobs.NewPublisher(nc, log)
	return n, nil
}

// logTLSErrors logs what is wrong with TLS, each error once, while a lost connection is being retried: the library
// goes on trying without calling a handler.
func (n *NATS) logTLSErrors(c *nats.Conn) {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	lastLogged := ""
	for c.IsReconnecting() {
		err := c.LastError()
		if cause := wire.Trusted(err); cause != err && cause.Error() != lastLogged { //nolint:errorlint // is it the same?
			lastLogged = cause.Error()
			n.cfg.Log.Error().Err(cause).Msg("no connection to NATS; connecting again")
		}
		select {
		case <-n.closed:
			return
		case <-tick.C:
		}
	}
}

func (n *NATS) Name() string { return "nats " + wire.Redact(n.cfg.URL) }

// Stay makes the connections leave servers that do not reach the job store (jobs.Stay). It returns at once.
func (n *NATS) Stay() {
	for _, c := range []*nats.Conn{n.nc, n.bulk} {
		go jobs.LeaveCutOffServers(c, n.cfg.Log)
	}
}

// Ready returns a channel that is closed when the server knows that requests are answered here.
func (n *NATS) Ready() <-chan struct{} { return n.ready }

// Up reports whether the connection to the server stands.
func (n *NATS) Up() bool { return n.nc.IsConnected() }

// Event publishes an event on patchbay.v1.events.<job>.<type>, as JSON. It does not block.
func (n *NATS) Event(ev message.Event) {
	m, err := jobs.EventMessage(ev, n.cfg.Owner, int(n.nc.MaxPayload()))
	if err != nil {
		n.cfg.Log.Error().Err(err).Str("type", ev.Type).Msg("event not published")
		return
	}
	n.out.Put(m)
}

// Preview publishes the JPEG of a preview on patchbay.v1.preview.<job>, if anybody listens. It does not block.
func (n *NATS) Preview(job, nodeID string, jpeg []byte) {
	subject := message.PreviewSubject(job)
	if !n.wanted(job, subject) {
		return
	}
	n.out.Put(&nats.Msg{Subject: subject, Data: jpeg, Header: nats.Header{
		"Content-Type": {"image/jpeg"}, "Patchbay-Job": {job}, "Patchbay-Node": {nodeID},
	}})
}

// previewLease is how long one message on <preview subject>.on keeps previews coming.
const previewLease = 30 * time.Second

func (n *NATS) wanted(job, subject string) bool {
	if n.cfg.Listens != nil {
		return n.cfg.Listens(subject)
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	return time.Now().Before(n.asked[job])
}

func (n *NATS) want(msg *nats.Msg) {
	job := strings.TrimSuffix(strings.TrimPrefix(msg.Subject, message.PreviewSubject("")), ".on")
	n.mu.Lock()
	defer n.mu.Unlock()
	now := time.Now()
	for j, until := range n.asked {
		if now.After(until) {
			delete(n.asked, j)
		}
	}
	if len(n.asked) < 10000 {
		n.asked[job] = now.Add(previewLease)
	}
}

// Serve implements Carrier: it registers the service and answers until ctx ends. Requests under way, and verbs about
// jobs of this daemon, are then answered until drain ends. The connection is closed when it returns.
func (n *NATS) Serve(ctx, drain context.Context, s *Service) error {
	defer n.Close()
	cfg := micro.Config{
		Name: serviceName, Version: n.cfg.Version, Description: "runs ComfyUI workflows on one or more devices",
		QueueGroup: queueGroup,
		Metadata:   n.cfg.Facts,
	}
	if n.cfg.Stats != nil {
		cfg.StatsHandler = func(*micro.Endpoint) any { return n.cfg.Stats() }
	}
	svc, err := micro.AddService(n.nc, cfg)
	if err != nil {
		return fmt.Errorf("register NATS service: %w", err)
	}
	group := svc.AddGroup(strings.TrimSuffix(wire.SubjectRoot, "."))
	for _, v := range message.Verbs() {
		opts := []micro.EndpointOpt{
			micro.WithEndpointSubject(strings.TrimPrefix(v.Subject("*"), wire.SubjectRoot)),
			micro.WithEndpointMetadata(map[string]string{
				"description": v.About, "request.content-types": "application/json, application/msgpack",
			}),
		}
		if v.Everyone {
			opts = append(opts, micro.WithEndpointQueueGroupDisabled())
		}
		h := func(req micro.Request) { n.handle(s, v, req) }
		if err := group.AddEndpoint(v.Name, micro.HandlerFunc(h), opts...); err != nil {
			return errors.Join(fmt.Errorf("register NATS endpoint %s: %w", v.Name, err), svc.Stop())
		}
	}
	if err := n.subscribe(s); err != nil {
		return errors.Join(err, svc.Stop())
	}
	if err := n.known(ctx); err != nil {
		return errors.Join(fmt.Errorf("register NATS service: %w", err), svc.Stop())
	}
	close(n.ready)
	select {
	case <-ctx.Done():
	case <-n.closed:
		return errors.New("the NATS connection was closed")
	}
	err = svc.Stop()
	select {
	case <-n.open.idle():
	case <-drain.Done():
	}
	return err
}

// known waits until the server knows what is subscribed to, which a connection that comes back tells it again.
func (n *NATS) known(ctx context.Context) error {
	for {
		err := n.nc.FlushTimeout(time.Second)
		if err == nil || n.nc.IsClosed() || wire.Pause(ctx, 100*time.Millisecond) != nil {
			return err
		}
	}
}

// subscribe adds the subscriptions that are not endpoints: verbs about jobs of this daemon, which it answers as their
// owner, and requests for previews.
func (n *NATS) subscribe(s *Service) error {
	for _, v := range message.Verbs() {
		if !v.PerJob {
			continue
		}
		_, err := n.nc.Subscribe(v.Subject("*"), func(msg *nats.Msg) {
			if job := wire.LastToken(msg.Subject); s.Owns(job) {
				n.answer(s, v.Name, job, msg.Data, msg.Header, msg.Reply, nil)
			}
		})
		if err != nil {
			return fmt.Errorf("subscribe to %s: %w", v.Name, err)
		}
	}
	_, err := n.nc.Subscribe(message.PreviewSubject("*")+".on", n.want)
	return err
}

// ownerWait is how long the queue group waits for the daemon that has a job before it answers "no such job".
// silentWait is the time between checks whether that daemon is alive.
const ownerWait, silentWait = 100 * time.Millisecond, time.Second

// handle is the handler of an endpoint. It answers verbs about a job only if no daemon has the job: an owner answers
// from its own subscription. An owner that shows no sign of life from the request until it counts as dead has not
// answered, and the answer is given here. A retry is the exception: the owner may have begun it before it died. So is
// what was asked before a retry: the owner has answered it, as that job had ended.
func (n *NATS) handle(s *Service, v message.Verb, req micro.Request) {
	if !v.PerJob {
		n.answer(s, v.Name, "", req.Data(), nats.Header(req.Headers()), req.Reply(), req)
		return
	}
	job := wire.LastToken(req.Subject())
	if s.Owns(job) {
		return
	}
	data, header, reply, asked := req.Data(), nats.Header(req.Headers()), req.Reply(), time.Now()
	time.AfterFunc(ownerWait, func() { // also answers if the job has come here meanwhile
		owner := s.cfg.Jobs.Holder(job)
		var look func()
		look = func() {
			switch alive, heard := s.cfg.Jobs.SignsOfLife(owner, asked); {
			case n.nc.IsClosed(), s.cfg.Jobs.Revived(job, asked):
			case owner == "" || !alive && v.Name != message.VerbRetry:
				n.answer(s, v.Name, job, data, header, reply, nil)
			case alive && !heard:
				time.AfterFunc(silentWait, look)
			}
		}
		look()
	})
}

// answer decodes a request and hands it to the service. req is nil outside the micro handler's own goroutine.
func (n *NATS) answer(s *Service, verb, job string, data []byte, header nats.Header, to string, req micro.Request) {
	if !wire.Answerable(to) {
		n.cfg.Log.Warn().Str("verb", verb).Str("reply",
			to).Msg("request dropped: its reply would go where only daemons may write")
		return
	}
	enc, err := wire.EncodingOf(header, data)
	n.open.begin()
	reply := n.reply(enc, to, req)
	r := &Call{
		Verb: verb, Job: job, From: wire.SenderOf(to), Reply: reply,
		MsgID: header.Get(jetstream.MsgIDHeader), TraceParent: message.CarriedTraceParent(header), pull: n.pull,
	}
	reply.Beside = n.beside(header, r)
	reply.Done = func() {
		r.hold.Release()
		n.open.end()
	}
	if err == nil && len(data) > 0 {
		r.Fields, err = wire.Decode(data, enc, s.cfg.Limits.message())
		if err != nil {
			err = undecodable(err)
		}
	}
	if err != nil {
		reply.Stream = message.VerbOf(verb).Stream(nil)
		s.Fail(reply, err)
		return
	}
	s.Handle(r)
}

// reply returns the Reply to one inbox. The first message from inside the micro handler goes through req, so that the
// service's statistics count it. Later ones must not touch req, which micro reads when the handler has returned.
func (n *NATS) reply(enc wire.Encoding, to string, req micro.Request) *Reply {
	r := &Reply{Enc: enc, Limit: int(n.nc.MaxPayload()) - 4096}
	r.Offer = func(data []byte) *wire.Ref { return n.blobs.Offer(data) }
	direct := req != nil
	r.Detach = func() { direct = false }
	r.Send = func(parts [][]byte, _ []int, failure *fault.Error, end bool) error {
		body := bytes.Join(parts, nil)
		if to == "" {
			return nil // a request without a reply subject, as `nats pub` sends
		}
		var err error
		switch {
		case parts == nil:
		case direct:
			direct = false
			head := micro.WithHeaders(micro.Headers{"Content-Type": {enc.ContentType()}})
			if failure != nil {
				err = req.Error(strconv.Itoa(failure.Status()), failure.Line(), body, head)
			} else {
				err = req.Respond(body, head)
			}
		default:
			err = n.nc.PublishMsg(&nats.Msg{Subject: to, Data: body, Header: replyHeader(enc, failure)})
		}
		if end && r.Stream && err == nil {
			err = n.nc.Publish(to, nil)
		}
		return err
	}
	r.Alive = func() bool {
		beat, _ := wire.Encode(map[string]string{"type": message.ReplyHeartbeat}, enc) // never fails
		_, err := n.nc.Request(to, beat, 200*time.Millisecond)
		return !errors.Is(err, nats.ErrNoResponders)
	}
	return r
}

func replyHeader(enc wire.Encoding, failure *fault.Error) nats.Header {
	h := nats.Header{"Content-Type": {enc.ContentType()}}
	if failure != nil {
		h.Set(micro.ErrorCodeHeader, strconv.Itoa(failure.Status()))
		h.Set(micro.ErrorHeader, failure.Line())
	}
	return h
}

// Close publishes what is waiting and closes the connection. Serve does it itself.
func (n *NATS) Close() {
	n.out.Close()
	n.blobs.Close()
	n.bulk.Close()
	_ = n.nc.FlushTimeout(time.Second)
	n.nc.Close()
	<-n.closed
}
