package client

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/nats-io/nats.go"

	"patchbay/fault"
	"patchbay/ipc/message"
	"patchbay/ipc/wire"
	"patchbay/ipc/wire/wiretest"
	"patchbay/node/pyjson"
	"patchbay/tests/hammer"
)

// headersTarget reads an input as the header block and the body of a message. The reply subject is in a header "Reply"
// here.
func headersTarget() *hammer.Target[natsMessage] {
	block := func(lines ...string) hammer.Input { return hammer.Input{Data: []byte(strings.Join(lines, "\r\n"))} }
	return &hammer.Target[natsMessage]{
		Name: "FuzzHeaders",
		Seeds: []hammer.Input{
			block("NATS/1.0", "Content-Type: application/json", "Nats-Msg-Id: order-42", "Patchbay-Accept: stream",
				"Reply: _INBOX.alice.x.1", "", `{"workflow":{}}`),
			block("NATS/1.0", "content-type: application/x-msgpack; a=b", "Patchbay-Accept: smb, object ,stream",
				"Reply: _INBOX.0123456789012345678901.1", "", "\x81\xa1a\x01"),
			block("NATS/1.0 503", "", ""),
			block("NATS/1.0 503 No Responders", "Nats-Service-Error: a", "Nats-Service-Error-Code: 400", "",
				`{"error":{"code":"bad_request","message":"m"}}`),
			block("NATS/1.0", "Patchbay-Error: nothing is offered", "Content-Type: text/plain",
				"Reply: $KV.patchbay-jobs.x", "", "{}"),
			block("NATS/1.0", "Reply: patchbay.v1.submit", "Content-Type:", "CONTENT-TYPE: application/msgpack", "",
				"\xdf\xff\xff\xff\xff"),
			block("NATS/1.0", "Reply: _INBOX.", "", ""),
		},
		Parse: func(in hammer.Input) (natsMessage, error) {
			head, body, _ := bytes.Cut(in.Data, []byte("\r\n\r\n"))
			header, err := nats.DecodeHeadersMsg(append(bytes.Clone(head), "\r\n\r\n"...))
			if err != nil {
				return natsMessage{}, err
			}
			m := natsMessage{header: header, body: body, reply: header.Get("Reply")}
			m.from = wire.SenderOf(m.reply)
			m.acceptsStream = wire.AcceptsStream(header)
			r := newReplies(nil)
			natsReply(r, &nats.Msg{Header: header, Data: body}, true)
			natsReply(r, &nats.Msg{Header: header, Data: body}, false)
			for {
				o, err := r.Next(context.Background())
				if err != nil && o == nil {
					m.end = err
					break
				}
				m.got = append(m.got, o)
			}
			m.enc, err = wire.EncodingOf(header, body)
			return m, err
		},
		Check: checkNATS,
		Bound: func(in hammer.Input) int64 {
			return 2*wiretest.FixedBytes + 8*int64(len(in.Data)) +
				3*(wiretest.DecodedBound(afterHeader(in.Data), wire.Msgpack)+wiretest.DecodedBound(afterHeader(in.Data), wire.JSON))
		},
	}
}

func afterHeader(data []byte) []byte {
	_, body, _ := bytes.Cut(data, []byte("\r\n\r\n"))
	return body
}

func checkNATS(_ hammer.Input, m natsMessage, refused error) error {
	if m.header == nil {
		return nil
	}
	if m.from != "" && (!strings.HasPrefix(m.reply, nats.InboxPrefix+m.from+".") || strings.Contains(m.from, ".")) {
		return fmt.Errorf("the reply subject %q is of %q", m.reply, m.from)
	}
	if wire.Answerable(m.reply) && (strings.HasPrefix(m.reply, "$JS.") || strings.HasPrefix(m.reply, "$KV.") ||
		strings.HasPrefix(m.reply, "patchbay.v1.")) {
		return fmt.Errorf("a daemon would answer on %q", m.reply)
	}
	if refused == nil && m.enc != wire.JSON && m.enc != wire.Msgpack {
		return fmt.Errorf("encoding %d", m.enc)
	}
	if m.end == nil || len(m.got) > 2 {
		return fmt.Errorf("two messages gave %d replies and the end %w", len(m.got), m.end)
	}
	if accept := m.header.Get(wire.HeaderAccept); m.acceptsStream && !strings.Contains(accept, wire.RefStream) {
		return fmt.Errorf("payloads go beside for %q", accept)
	}
	return nil
}

// natsMessage is what was read from a message: by the daemon as a request, by a client as a reply.
type natsMessage struct {
	header        nats.Header
	reply         string
	body          []byte
	enc           wire.Encoding
	acceptsStream bool
	from          string
	got           []*pyjson.Object
	end           error
}

// taken is what a client got for one request.
type taken struct {
	files []message.File
	err   error // of the connection
}

// repliesTarget sends an input, as frames of a daemon, to a client with one open request, and checks that what the
// client gets is whole, or refused.
func repliesTarget(tb testing.TB) *hammer.Target[taken] {
	seed := func(enc wire.Encoding, bodies ...any) hammer.Input {
		var out []byte
		for i, v := range bodies {
			b, err := wire.Encode(v, enc)
			if err != nil {
				tb.Fatal(err)
			}
			parts, err := wire.Splice(wire.Envelope{Tag: 1, End: i == len(bodies)-1}, [][]byte{b}, enc)
			if err != nil {
				tb.Fatal(err)
			}
			out = append(out, wiretest.FrameOf(bytes.Join(parts, nil))...)
		}
		return hammer.Input{Data: out}
	}
	data := wiretest.Noise(300)
	file := message.OutputRef{Node: "9", Ext: ".png", Bytes: len(data), CRC32C: message.Checksum(data)}
	end := message.Event{V: 1, Type: message.EventSuccess, Job: "j", Seq: 4, Data: map[string]any{"prompt_id": "j"}}
	var seeds []hammer.Input
	for _, enc := range []wire.Encoding{wire.Msgpack, wire.JSON} {
		seeds = append(
			seeds,
			seed(enc, message.Receipt{V: 1, Type: message.ReplyAccepted, Job: "j", State: message.Queued},
				message.Event{Type: message.EventProgress, Job: "j", Seq: 2, Data: map[string]any{"value": 1}},
				message.Output{Type: message.ReplyOutput, Job: "j", Ref: file, Data: data}, end),
			seed(enc, message.Output{Type: message.ReplyOutput, Ref: file, Data: data[:200]}, end),
			seed(enc, map[string]any{"error": fault.New(fault.NoJob, "no job")}),
			seed(enc, message.Preview{
				Type: message.ReplyPreview, Job: "j", Node: "1", Format: "image/jpeg",
				Data: []byte("jpeg"),
			}, message.Heartbeat{Type: message.ReplyHeartbeat, Job: "j", TS: 1},
				message.Event{Type: message.EventError, Error: fault.New(fault.NoModel, "none")}),
			seed(enc, message.RecordReply{
				Type: "record",
				Record: message.Record{
					V: 1, Job: "j", State: message.Failed, Causes: []string{"x"},
					Outputs: []message.OutputRef{file},
				},
			}),
		)
	}
	return &hammer.Target[taken]{
		Name: "FuzzReplies", Seeds: seeds,
		Parse: func(in hammer.Input) (taken, error) {
			r := newReplies(nil)
			c := &FrameClient{gone: make(chan struct{}), pending: map[int64]*Replies{1: r}}
			c.read(bytes.NewReader(in.Data))
			col := &Collector{}
			_, err := col.Run(context.Background(), r)
			return taken{files: col.Files, err: c.err}, err
		},
		Check: func(_ hammer.Input, got taken, refused error) error {
			if got.err == nil {
				return errors.New("a connection that has ended has no error")
			}
			for i, f := range got.files {
				if refused == nil && (len(f.Data) != f.Ref.Bytes || message.Checksum(f.Data) != f.Ref.CRC32C) {
					return fmt.Errorf("file %d of %d bytes was taken, its reference says %d", i, len(f.Data), f.Ref.Bytes)
				}
			}
			return nil
		},
		Bound: func(in hammer.Input) int64 {
			n := int64(wiretest.FixedBytes) + 4*int64(len(in.Data))
			for rest := in.Data; len(rest) >= 4; {
				size := binary.BigEndian.Uint32(rest)
				if rest = rest[4:]; int64(size) > int64(len(rest)) {
					break
				}
				if body := rest[:size]; size > 0 {
					if enc, ok := wire.Sniff(body); ok {
						n += 4 * wiretest.DecodedBound(body, enc)
					}
				}
				rest = rest[size:]
			}
			return n
		},
	}
}

// FuzzHeaders reads the headers and reply subjects of NATS messages, requests and replies.
func FuzzHeaders(f *testing.F) { headersTarget().Fuzz(f) }

// FuzzReplies reads what a daemon or a worker answers, files included.
func FuzzReplies(f *testing.F) { repliesTarget(f).Fuzz(f) }

// TestParsersUnderTheHammer runs every parser of untrusted bytes on mutated inputs: 20,000 each, 10,000,000 in `make
// soak`.
func TestParsersUnderTheHammer(t *testing.T) {
	t.Run("Headers", func(t *testing.T) { headersTarget().Run(t, hammer.Runs) })
	t.Run("Replies", func(t *testing.T) { repliesTarget(t).Run(t, hammer.Runs) })
}
