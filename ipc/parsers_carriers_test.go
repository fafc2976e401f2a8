package ipc

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"slices"
	"strings"
	"testing"

	"github.com/nats-io/nats.go"
	"golang.org/x/sys/unix"

	"patchbay/node/pyjson"
	"patchbay/tests/hammer"
)

// FuzzRequests reads the bodies of all verbs as the service does.
func FuzzRequests(f *testing.F) { requestsTarget(f).Fuzz(f) }

// FuzzRefs replaces references to shared memory in whatever comes.
func FuzzRefs(f *testing.F) { refsTarget(f).Fuzz(f) }

// FuzzChunks takes streams of chunks.
func FuzzChunks(f *testing.F) { chunksTarget().Fuzz(f) }

// FuzzPulls reads requests for chunks.
func FuzzPulls(f *testing.F) { pullsTarget(f).Fuzz(f) }

// FuzzHeaders reads the headers and reply subjects of NATS messages, requests and replies.
func FuzzHeaders(f *testing.F) { headersTarget().Fuzz(f) }

// FuzzReplies reads what a daemon or a worker answers, files in chunks included.
func FuzzReplies(f *testing.F) { repliesTarget(f).Fuzz(f) }

// aSample is the smallest body of sample, with one of everything.
func aSample() *SampleRequest {
	f32 := func(shape ...int) *Tensor {
		t := &Tensor{DType: "f32", Shape: shape}
		t.Data = make([]byte, t.Bytes())
		return t
	}
	half, one := 0.5, 1.0
	return &SampleRequest{
		ID: "s", Model: ModelRef{File: "m", Patches: []PatchRef{{Key: "k", Offset: []int{0, 1, 2}, Adapter: "lora", Strength: &half, Tensors: PatchTensors{Up: f32(2, 1), Down: f32(1, 2), Alpha: &one}}}},
		Sampler: SamplerRef{Name: "euler", Options: map[string]any{"eta": 1.0}}, Sampling: &SamplingRef{Bases: []string{"CONST"}, Shift: &one},
		Sigmas: f32(2), Noise: f32(1, 1, 2, 2), Latent: f32(1, 1, 2, 2), Mask: f32(1, 1, 2, 2), CFG: &one, NoiseDraws: []int{4},
		Conds: CondsRef{Positive: []CondRef{{
			ModelConds:    map[string]*Tensor{"c_crossattn": f32(1, 1, 2), "y": f32(1, 2), "guidance": f32(1), "attention_mask": {DType: "u8", Shape: []int{1, 2}, Data: []byte{1, 0}}},
			TimestepStart: &one, Area: []int{1, 1, 0, 0}, Mask: f32(1, 2, 2),
		}}, Negative: &[]CondRef{}},
	}
}

// frameSeeds are requests in frames, one a verb at least, in both encodings.
func frameSeeds(tb testing.TB) []hammer.Input {
	tb.Helper()
	tensor := &Tensor{DType: "f16", Shape: []int{2}, Data: []byte{0, 0x3c, 0, 0}}
	picture := map[string]*Ref{refKey: {Kind: RefShm, Bytes: 4, FD: 1, Offset: 8}}
	var out []hammer.Input
	for verb, body := range map[string]any{
		VerbRun:      &RunRequest{ID: "j", Workflow: nodesOf("Wait 1"), Inputs: map[string][]byte{"a.png": []byte("abc")}, Priority: "high", QueueTTLMS: 5},
		VerbSubmit:   map[string]any{"workflow": nodesOf("Picture 3"), "inputs": map[string]any{"a.png": picture}},
		VerbStatus:   jobRequest{Job: "j", Follow: true, From: 3, Outputs: true},
		VerbJobs:     jobsRequest{State: "done", Limit: 7},
		VerbCancel:   jobRequest{Job: "j"},
		VerbDescribe: describeRequest{Class: "KSampler", Schema: true},
		VerbExec:     &ExecRequest{Class: "Echo", Inputs: pyjson.NewObject("a", tensor, "b", pyjson.NewObject(handleKey, "h"), "c", []any{1, picture}), Want: []int{0}, LeaseMS: 5},
		VerbSample:   aSample(),
		VerbLoad:     &LoadRequest{Model: ModelRef{File: "m"}, Plan: "ulysses=2"},
		VerbFree:     &FreeRequest{Handles: []string{"h"}, Models: []string{"m"}},
	} {
		for _, enc := range []Encoding{Msgpack, JSON} {
			b, err := Encode(body, enc)
			if err != nil {
				tb.Fatal(err)
			}
			parts, err := splice(envelope{Op: verb, Tag: 1, Accept: []string{RefShm}}, b, enc)
			if err != nil {
				tb.Fatal(err)
			}
			out = append(out, hammer.Input{Data: bytes.Join(parts, nil)})
		}
	}
	slices.SortFunc(out, func(a, b hammer.Input) int { return bytes.Compare(a.Data, b.Data) }) // maps have no order, runs have
	return out
}

// request is a request that was read from a frame.
type request struct {
	verb   string
	fields *pyjson.Object
	body   any
}

// readRequest takes a frame apart as a connection does, and binds the body of its verb as the service does.
func readRequest(data []byte) (request, error) {
	enc, ok := Sniff(data)
	if !ok {
		return request{}, errors.New("no map")
	}
	o, err := Decode(data, enc, DefaultLimits())
	if err != nil {
		return request{}, err
	}
	var head envelope
	if err := Bind(o, &head); err != nil {
		return request{}, err
	}
	q := request{verb: head.Op, fields: without(without(without(o, "op"), "tag"), "accept")}
	if _, err := refsOf(q.verb, q.fields); err != nil {
		return q, err
	}
	switch q.verb {
	case VerbRun, VerbSubmit:
		req, _, fault := ParseRun(q.fields)
		if fault != nil {
			return q, fault
		}
		_ = clientOf(&Request{}, req)
		q.body = req
	case VerbSample:
		req, fault := parseSample(q.fields, false)
		if fault != nil {
			return q, fault
		}
		q.body = req
	case VerbExec:
		req := &ExecRequest{}
		if err := Bind(q.fields, req); err != nil {
			return q, err
		}
		walkHandles(req.Inputs, func(string) {})
		q.body = req
	case VerbLoad:
		q.body = &LoadRequest{}
		return q, bindStrict(q.fields, q.body)
	case VerbFree:
		q.body = &FreeRequest{}
	case VerbJobs:
		q.body = &jobsRequest{}
	case VerbDescribe:
		q.body = &describeRequest{}
	case VerbStatus, VerbCancel, VerbRetry:
		q.body = &jobRequest{}
	default:
		return q, errors.New("no verb")
	}
	if q.verb == VerbExec || q.verb == VerbRun || q.verb == VerbSubmit || q.verb == VerbSample {
		return q, nil
	}
	return q, Bind(q.fields, q.body)
}

// requestsTarget: what was bound can be encoded, and is bound again.
func requestsTarget(tb testing.TB) *hammer.Target[request] {
	return &hammer.Target[request]{
		Name: "FuzzRequests", Seeds: frameSeeds(tb),
		Parse: func(in hammer.Input) (request, error) { return readRequest(in.Data) },
		Check: func(_ hammer.Input, q request, refused error) error {
			if refused != nil {
				return nil
			}
			if s, ok := q.body.(*SampleRequest); ok {
				if err := checkSample(s); err != nil {
					return err
				}
			}
			b, err := Encode(q.body, Msgpack)
			if err != nil {
				return fmt.Errorf("encode what was bound: %w", err)
			}
			o, err := Decode(b, Msgpack, Limits{Bytes: 1 << 30, Depth: 80, Items: 1 << 20})
			if err != nil {
				return fmt.Errorf("decode what was bound and encoded: %w", err)
			}
			parts, err := splice(envelope{Op: q.verb}, b, Msgpack)
			if err != nil {
				return err
			}
			again, err := readRequest(bytes.Join(parts, nil))
			if err != nil && !holdsOddNumber(o) { // 1e300 is a number here and an integer there
				return fmt.Errorf("a %s that was bound is refused when it is sent on: %w", q.verb, err)
			}
			if err == nil && again.verb != q.verb {
				return fmt.Errorf("%s became %s", q.verb, again.verb)
			}
			return nil
		},
		Bound: func(in hammer.Input) int64 {
			enc, ok := Sniff(in.Data)
			if !ok {
				return fixedBytes
			}
			return fixedBytes + 2*decodedBound(in.Data, enc) + textBound(in.Data)
		},
	}
}

// checkSample: numbers that were taken fit their shapes.
func checkSample(q *SampleRequest) error {
	l := q.built.Request.Latent
	if l.B < 1 || l.C < 1 || l.Y < 1 || l.X < 1 || len(l.Data) != l.B*l.C*l.Y*l.X {
		return fmt.Errorf("a latent [%d, %d, %d, %d] of %d values was taken", l.B, l.C, l.Y, l.X, len(l.Data))
	}
	for _, b := range q.built.Request.Branches {
		for i := range b.Entries {
			if c := b.Entries[i].Entry.Context; len(c.Data) != c.Rows*c.Cols {
				return fmt.Errorf("a context [%d, %d] of %d values was taken", c.Rows, c.Cols, len(c.Data))
			}
		}
	}
	return nil
}

// refsTarget: references mean memory inside of what the frame brought, or are refused; descriptors and mappings are given back. The flag brings two regions.
func refsTarget(tb testing.TB) *hammer.Target[error] {
	sizes := []int{1 << 16, 100}
	var regions []*Region
	for _, n := range sizes {
		r, err := NewRegion(n)
		if err != nil {
			tb.Fatal(err)
		}
		tb.Cleanup(r.Release)
		regions = append(regions, r)
	}
	seeds := frameSeeds(tb)
	both := map[string]any{"op": VerbExec, "tag": 1, "inputs": []any{
		&Tensor{DType: "f32", Shape: []int{16384}, Ref: &Ref{Kind: RefShm, Bytes: 1 << 16}}, map[string]*Ref{refKey: {Kind: RefShm, Bytes: 100, FD: 1}},
	}}
	for _, s := range seeds {
		seeds = append(seeds, hammer.Input{Data: s.Data, Flag: true})
	}
	seeds = append(seeds, hammer.Input{Data: packed(tb, both), Flag: true})
	return &hammer.Target[error]{
		Name: "FuzzRefs", Flag: true, Seeds: seeds,
		Parse: func(in hammer.Input) (wrong error, refused error) {
			enc, ok := Sniff(in.Data)
			if !ok {
				return nil, errors.New("no map")
			}
			o, err := Decode(in.Data, enc, DefaultLimits())
			if err != nil {
				return nil, err
			}
			verb, _ := o.Get("op")
			op, _ := verb.(string)
			var fds []int
			if in.Flag {
				for _, r := range regions {
					fd, err := unix.FcntlInt(uintptr(r.fd), unix.F_DUPFD_CLOEXEC, 0)
					if err != nil {
						return err, nil
					}
					fds = append(fds, fd)
				}
			}
			h, err := mapped(fds, func(f func(*Ref) ([]byte, error)) error { return replaceRefs(op, o, f) })
			if err != nil {
				return nil, err
			}
			defer h.release()
			if in.Flag && (h == nil || len(h.regions) != len(sizes)) {
				return errors.New("a frame with two descriptors was taken, and does not hold them"), nil
			}
			return outside(o, h), nil
		},
		Check: func(_ hammer.Input, wrong error, _ error) error { return wrong },
		Bound: func(in hammer.Input) int64 {
			enc, ok := Sniff(in.Data)
			if !ok {
				return fixedBytes
			}
			return fixedBytes + 2*decodedBound(in.Data, enc)
		},
	}
}

// outside finds a reference to shared memory that was not replaced, and touches what was.
func outside(v any, h *hold) error {
	switch x := v.(type) {
	case *Tensor:
		if err := x.Check(); err != nil {
			return fmt.Errorf("a tensor that does not hold together was taken: %w", err)
		}
		if h.has(x.Data) {
			_ = x.Data[0] + x.Data[len(x.Data)-1]
		}
	case []byte:
		if h.has(x) {
			_ = x[0] + x[len(x)-1]
		}
	case []any:
		for _, e := range x {
			if err := outside(e, h); err != nil {
				return err
			}
		}
	case *pyjson.Object:
		for _, k := range x.Keys() {
			e, _ := x.Get(k)
			if err := outside(e, h); err != nil {
				return err
			}
		}
	}
	return nil
}

// A stream of chunks in a fuzz input: the size of the payload as u32, then every message behind its length as u16, all big-endian.
const chunkMost = 1 << 10 // bytes of a chunk that were asked for

func chunkStream(total int, chunks ...[]byte) []byte {
	b := binary.BigEndian.AppendUint32(nil, uint32(total))
	for _, c := range chunks {
		b = append(binary.BigEndian.AppendUint16(b, uint16(len(c))), c...)
	}
	return b
}

func aChunk(number uint32, at int, data []byte) []byte {
	b := binary.BigEndian.AppendUint32(nil, number)
	b = binary.BigEndian.AppendUint32(b, crc32.ChecksumIEEE(data))
	return append(binary.BigEndian.AppendUint64(b, uint64(at)), data...)
}

// mendChunks makes the checksums of the chunks of a stream right.
func mendChunks(b []byte) []byte {
	for rest := b[min(4, len(b)):]; len(rest) >= 2+chunkHead; {
		n := int(binary.BigEndian.Uint16(rest))
		if rest = rest[2:]; n > len(rest) {
			break
		}
		if n > chunkHead {
			binary.BigEndian.PutUint32(rest[4:], crc32.ChecksumIEEE(rest[chunkHead:n]))
		}
		rest = rest[n:]
	}
	return b
}

// chunksTarget: what is taken of a stream are the chunks 0, 1, 2 ..., each at the end of the one before, never more than there should be.
func chunksTarget() *hammer.Target[[]byte] {
	a, b := noise(1000), noise(600)
	whole := chunkStream(1600, aChunk(0, 0, a), aChunk(1, 1000, b))
	return &hammer.Target[[]byte]{
		Name: "FuzzChunks",
		Seeds: []hammer.Input{
			{Data: whole},
			{Data: chunkStream(1600, aChunk(1, 1000, b), aChunk(0, 0, a))},
			{Data: chunkStream(1000, aChunk(0, 0, a), aChunk(0, 0, a))},
			{Data: chunkStream(700, aChunk(0, 0, b), aChunk(1, 600, b))},
			{Data: chunkStream(40, aChunk(0, 0, a[:10]), aChunk(1, 10, a[:10]), aChunk(2, 20, a[:10]), aChunk(3, 30, a[:10]))},
			{Data: chunkStream(1<<31, aChunk(1<<31, 1<<40, b))},
		},
		Mend: mendChunks,
		Parse: func(in hammer.Input) ([]byte, error) {
			if len(in.Data) < 4 {
				return nil, io.EOF
			}
			total := int(binary.BigEndian.Uint32(in.Data))
			var got []byte
			number := uint32(0)
			for rest := in.Data[4:]; len(got) < total; {
				if len(rest) < 2 || int(binary.BigEndian.Uint16(rest)) > len(rest)-2 {
					return got, io.EOF
				}
				m := rest[2 : 2+binary.BigEndian.Uint16(rest)]
				n, err := checkChunk(m, number, len(got), chunkMost, total)
				if err != nil {
					return got, err
				}
				if len(m) != chunkHead+n {
					return got, fmt.Errorf("of a chunk of %d bytes %d were taken", len(m), n)
				}
				got, number, rest = append(got, m[chunkHead:]...), number+1, rest[2+len(m):]
			}
			return got, nil
		},
		Check: func(in hammer.Input, got []byte, refused error) error {
			if len(in.Data) < 4 {
				return nil
			}
			total := int(binary.BigEndian.Uint32(in.Data))
			if len(got) > total || refused == nil && len(got) != total {
				return fmt.Errorf("%d bytes of %d were taken (%w)", len(got), total, refused)
			}
			for i, at, rest := uint64(0), 0, in.Data[4:]; at < len(got); i++ {
				n := int(binary.BigEndian.Uint16(rest)) - chunkHead
				m := rest[2:]
				if n < 1 || n > chunkMost || binary.BigEndian.Uint64(m[8:]) != uint64(at) || uint64(binary.BigEndian.Uint32(m)) != i || !bytes.Equal(got[at:at+n], m[chunkHead:chunkHead+n]) {
					return fmt.Errorf("chunk %d was taken: %d bytes at %d, with the header %x", i, n, at, m[:chunkHead])
				}
				at, rest = at+n, m[chunkHead+n:]
			}
			return nil
		},
		Bound: func(in hammer.Input) int64 { return fixedBytes + 4*int64(len(in.Data)) },
	}
}

// pullsTarget: only small chunks and windows can be asked for.
func pullsTarget(tb testing.TB) *hammer.Target[pull] {
	return &hammer.Target[pull]{
		Name: "FuzzPulls",
		Seeds: []hammer.Input{
			{Data: packed(tb, pull{ID: "a", Chunk: chunkBytes, Window: chunkWindow})},
			{Data: packed(tb, pull{ID: "a", Chunk: 1 << 62, Window: 1})},
			{Data: packed(tb, map[string]any{"id": "a", "chunk": 5e3, "window": -1})},
		},
		Parse: func(in hammer.Input) (pull, error) { return parsePull(in.Data) },
		Check: func(_ hammer.Input, q pull, refused error) error {
			if refused == nil && (q.Chunk < 4096 || q.Window < 1 || q.Window > 1024) {
				return fmt.Errorf("%+v was taken", q)
			}
			return nil
		},
		Bound: func(in hammer.Input) int64 { return decodedBound(in.Data, Msgpack) },
	}
}

// natsMessage is what was read of a message: by the daemon as a request, by a client as a reply.
type natsMessage struct {
	header nats.Header
	reply  string
	body   []byte
	enc    Encoding
	beside bool
	from   string
	got    []*pyjson.Object
	end    error
}

// headersTarget: an input is the header block of a message and its body. Its reply subject stands in a header "Reply" here.
func headersTarget() *hammer.Target[natsMessage] {
	block := func(lines ...string) hammer.Input { return hammer.Input{Data: []byte(strings.Join(lines, "\r\n"))} }
	carrier := &NATS{}
	return &hammer.Target[natsMessage]{
		Name: "FuzzHeaders",
		Seeds: []hammer.Input{
			block("NATS/1.0", "Content-Type: application/json", "Nats-Msg-Id: order-42", "Patchbay-Accept: stream", "Reply: _INBOX.alice.x.1", "", `{"workflow":{}}`),
			block("NATS/1.0", "content-type: application/x-msgpack; a=b", "Patchbay-Accept: smb, object ,stream", "Reply: _INBOX.0123456789012345678901.1", "", "\x81\xa1a\x01"),
			block("NATS/1.0 503", "", ""),
			block("NATS/1.0 503 No Responders", "Nats-Service-Error: a", "Nats-Service-Error-Code: 400", "", `{"error":{"code":"bad_request","message":"m"}}`),
			block("NATS/1.0", "Patchbay-Error: nothing is offered", "Content-Type: text/plain", "Reply: $KV.patchbay-jobs.x", "", "{}"),
			block("NATS/1.0", "Reply: patchbay.v1.submit", "Content-Type:", "CONTENT-TYPE: application/msgpack", "", "\xdf\xff\xff\xff\xff"),
			block("NATS/1.0", "Reply: _INBOX.", "", ""),
		},
		Parse: func(in hammer.Input) (natsMessage, error) {
			head, body, _ := bytes.Cut(in.Data, []byte("\r\n\r\n"))
			header, err := nats.DecodeHeadersMsg(append(bytes.Clone(head), "\r\n\r\n"...))
			if err != nil {
				return natsMessage{}, err
			}
			m := natsMessage{header: header, body: body, reply: header.Get("Reply")}
			m.from = senderOf(m.reply)
			m.beside = carrier.beside(header, &Request{}) != nil
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
			m.enc, err = encodingOf(header, body)
			return m, err
		},
		Check: checkNATS,
		Bound: func(in hammer.Input) int64 {
			return 2*fixedBytes + 8*int64(len(in.Data)) + 3*(decodedBound(afterHeader(in.Data), Msgpack)+decodedBound(afterHeader(in.Data), JSON))
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
	if answerable(m.reply) && (strings.HasPrefix(m.reply, "$JS.") || strings.HasPrefix(m.reply, "$KV.") || strings.HasPrefix(m.reply, "patchbay.v1.")) {
		return fmt.Errorf("a daemon would answer on %q", m.reply)
	}
	if refused == nil && m.enc != JSON && m.enc != Msgpack {
		return fmt.Errorf("encoding %d", m.enc)
	}
	if m.end == nil || len(m.got) > 2 {
		return fmt.Errorf("two messages gave %d replies and the end %w", len(m.got), m.end)
	}
	if accept := m.header.Get(headerAccept); m.beside && !strings.Contains(accept, RefStream) && !strings.Contains(accept, RefObject) {
		return fmt.Errorf("payloads go beside for %q", accept)
	}
	return nil
}

// taken is what a client has of one request.
type taken struct {
	files []File
	err   error // of the connection
}

// repliesTarget: an input is frames that a daemon sends. A client with one request under way takes them: what it has then is whole, or refused.
func repliesTarget(tb testing.TB) *hammer.Target[taken] {
	seed := func(enc Encoding, bodies ...any) hammer.Input {
		var out []byte
		for i, v := range bodies {
			b, err := Encode(v, enc)
			if err != nil {
				tb.Fatal(err)
			}
			parts, err := splice(envelope{Tag: 1, End: i == len(bodies)-1}, b, enc)
			if err != nil {
				tb.Fatal(err)
			}
			out = append(out, frameOf(bytes.Join(parts, nil))...)
		}
		return hammer.Input{Data: out}
	}
	data := noise(300)
	file := OutputRef{Node: "9", Ext: ".png", Bytes: len(data), CRC32C: checksum(data)}
	end := Event{V: 1, Type: EventSuccess, Job: "j", Seq: 4, Data: map[string]any{"prompt_id": "j"}}
	var seeds []hammer.Input
	for _, enc := range []Encoding{Msgpack, JSON} {
		seeds = append(
			seeds,
			seed(enc, Receipt{V: 1, Type: replyAccepted, Job: "j", State: Queued}, Event{Type: EventProgress, Job: "j", Seq: 2, Data: map[string]any{"value": 1}}, outputMessage{Type: replyOutput, Job: "j", Ref: file, Data: data}, end),
			seed(enc, outputMessage{Type: replyOutput, Ref: file, Chunks: 2}, chunkMessage{replyChunk, "j", 0, 0, data[:200]}, chunkMessage{replyChunk, "j", 0, 200, data[200:]}, end),
			seed(enc, map[string]any{"error": Errorf(ErrNoJob, "no job")}),
			seed(enc, previewMessage{Type: replyPreview, Job: "j", Node: "1", Format: "image/jpeg", Data: []byte("jpeg")}, heartbeatMessage{replyHeartbeat, "j", 1}, Event{Type: EventError, Error: Errorf(ErrNoModel, "none")}),
			seed(enc, recordReply{"record", Record{V: 1, Job: "j", State: Failed, Causes: []string{"x"}, Outputs: []OutputRef{file}}}),
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
				if refused == nil && (len(f.Data) != f.Ref.Bytes || checksum(f.Data) != f.Ref.CRC32C) {
					return fmt.Errorf("file %d of %d bytes was taken, its reference says %d", i, len(f.Data), f.Ref.Bytes)
				}
			}
			return nil
		},
		Bound: func(in hammer.Input) int64 {
			n := int64(fixedBytes) + 4*int64(len(in.Data))
			for rest := in.Data; len(rest) >= 4; {
				size := binary.BigEndian.Uint32(rest)
				if rest = rest[4:]; int64(size) > int64(len(rest)) {
					break
				}
				if body := rest[:size]; size > 0 {
					if enc, ok := Sniff(body); ok {
						n += 4 * decodedBound(body, enc)
					}
				}
				rest = rest[size:]
			}
			return n
		},
	}
}
