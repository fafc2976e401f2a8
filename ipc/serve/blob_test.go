package serve_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"hash/crc32"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/rs/zerolog"

	"patchbay/array"
	"patchbay/fault"
	"patchbay/ipc/bulk"
	"patchbay/ipc/client"
	"patchbay/ipc/ipctest"
	"patchbay/ipc/jobs"
	"patchbay/ipc/message"
	"patchbay/ipc/message/messagetest"
	"patchbay/ipc/serve"
	"patchbay/ipc/wire"
	"patchbay/ipc/wire/wiretest"
	"patchbay/node/pyjson"
	"patchbay/tests/natsserver"
)

// payloadRig starts a rig on a server with JetStream. tune may change the carrier before it serves.
func payloadRig(t testing.TB, tune func(*serve.NATS), executors ...jobs.Executor) (*client.NATSClient, *serve.NATS) {
	t.Helper()
	e := natsserver.Start(t, natsserver.Inside(t.TempDir()))
	n, err := serve.ConnectNATS(serve.NATSConfig{URL: e.URL, Version: "0.1.0", Log: zerolog.Nop()})
	if err != nil {
		t.Fatal(err)
	}
	if tune != nil {
		tune(n)
	}
	serveNATS(t, e.URL, n, ipctest.NewRig(t, jobs.Config{OnEvent: n.Event}, jobs.OutputsConfig{}, executors...))
	c, err := client.DialNATS(e.URL)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c, n
}

// TestTensorsInChunks checks that tensors sent over NATS come back unchanged, in sizes around those of messages and
// chunks.
func TestTensorsInChunks(t *testing.T) {
	c, n := payloadRig(t, nil)
	ctx := wiretest.Context(t)
	for _, size := range []int{1000, wire.BulkBytes, wire.BulkBytes + 1, bulk.ChunkWindow * bulk.ChunkBytes, 20<<20 + 3} {
		want := &wire.Tensor{Tensor: array.Tensor{DType: "u8", Shape: []int{size}, Data: wiretest.Noise(size)}}
		var out message.ExecReply
		if err := client.AskOne(ctx, c, message.VerbExec, "",
			&message.ExecRequest{Class: "Echo", Inputs: pyjson.NewObject("value", want)}, &out); err != nil {
			t.Fatalf("%d bytes: %v", size, err)
		}
		if got, ok := out.Outputs[0].(*wire.Tensor); !ok || !bytes.Equal(got.Data, want.Data) {
			t.Fatalf("%d bytes came back as %T", size, out.Outputs[0])
		}
	}
	// many tensors that would each fit in the message
	list := []any{}
	for range 40 {
		list = append(list, &array.Tensor{DType: "u8", Shape: []int{300 << 10}, Data: wiretest.Noise(300 << 10)})
	}
	var out message.ExecReply
	if err := client.AskOne(ctx, c, message.VerbExec, "",
		&message.ExecRequest{Class: "Echo", Inputs: pyjson.NewObject("value", list)}, &out); err != nil {
		t.Fatal(err)
	}
	if got := out.Outputs[0].([]any); len(got) != 40 ||
		!bytes.Equal(got[39].(*wire.Tensor).Data, wiretest.Noise(300<<10)) {
		t.Errorf("got %d tensors", len(got))
	}
	_, col, end := ipctest.RunJob(t, c, &message.RunRequest{
		Workflow: messagetest.Graph("Picture 9000000"),
		Inputs:   map[string][]byte{"a": wiretest.Noise(10 << 20)},
	})
	if end.Type != message.EventSuccess || len(col.Files) != 1 ||
		!bytes.Equal(col.Files[0].Data, messagetest.Picture("1", 9000000).Data) {
		t.Errorf("got %+v and %d files", end, len(col.Files))
	}
	untilGivenBack(t, n.Blobs())
	blobs, err := c.Payloads()
	if err != nil {
		t.Fatal(err)
	}
	if offers, taken := blobs.Open(); offers != 0 || taken != 0 {
		t.Errorf("%d offers and %d bytes are left in the client", offers, taken)
	}
}

// untilGivenBack waits until no offer, transfer or pulled byte is left.
func untilGivenBack(t *testing.T, b *bulk.Blobs) {
	t.Helper()
	for end := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
		offers, taken := b.Open()
		if offers == 0 && taken == 0 {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("%d bytes and %d offers are left in the daemon", taken, offers)
		}
	}
}

// TestFilesForPlainClients checks that a client that knows neither msgpack nor references gets a file whole inside its
// message if it fits, and otherwise as a stream that it can pull in JSON. In frames every file is inside.
func TestFilesForPlainClients(t *testing.T) {
	c, n := payloadRig(t, nil)
	ctx := wiretest.Context(t)
	limit := int(c.Conn().MaxPayload()-4096-32<<10) / 4 * 3 // base64
	for _, size := range []int{1000, limit, limit + 1, 20<<20 + 3} {
		want := messagetest.Picture("1", size).Data
		inbox := c.Conn().NewInbox()
		sub, err := c.Conn().SubscribeSync(inbox)
		if err != nil {
			t.Fatal(err)
		}
		job := fmt.Sprintf(`{"1": {"class_type": "Picture", "inputs": {"n": %d}}}`, size)
		if err := c.Conn().PublishRequest(message.VerbSubject(message.VerbRun, ""), inbox, []byte(job)); err != nil {
			t.Fatal(err)
		}
		var got []byte
		inside := false
		for {
			m, err := sub.NextMsgWithContext(ctx)
			if err != nil {
				t.Fatal(err)
			}
			if len(m.Data) == 0 {
				break
			}
			var reply struct {
				Type string
				Data json.RawMessage
			}
			if err := json.Unmarshal(m.Data, &reply); err != nil {
				t.Fatal(err)
			}
			if reply.Type != message.ReplyOutput {
				continue
			}
			var at map[string]wire.Ref
			if inside = json.Unmarshal(reply.Data, &at) != nil; !inside {
				got = plainPull(t, c.Conn(), at[wire.RefKey])
			} else if err := json.Unmarshal(reply.Data, &got); err != nil {
				t.Fatal(err)
			}
		}
		if !bytes.Equal(got, want) || inside != (size <= limit) {
			t.Errorf("of a picture of %d bytes came %d, inside: %v", size, len(got), inside)
		}
	}
	untilGivenBack(t, n.Blobs())
	r := ipctest.NewRig(t, jobs.Config{}, jobs.OutputsConfig{})
	frames := ipctest.DialRig(t, r)
	frames.Enc = wire.JSON
	_, col, _ := ipctest.RunJob(t, frames, &message.RunRequest{Workflow: messagetest.Graph("Picture 9000000")})
	if len(col.Files) != 1 || !bytes.Equal(col.Files[0].Data, messagetest.Picture("1", 9_000_000).Data) {
		t.Errorf("in frames %d files came, or other bytes", len(col.Files))
	}
}

// plainPull fetches a stream as docs/protocol.md describes it, with nothing of package bulk.
func plainPull(t *testing.T, nc *nats.Conn, ref wire.Ref) (got []byte) {
	t.Helper()
	inbox := nc.NewInbox()
	sub, err := nc.SubscribeSync(inbox)
	if err == nil {
		err = nc.PublishRequest(ref.Subject, inbox, fmt.Appendf(nil, `{"id": %q, "chunk": 500000, "window": 2}`, ref.ID))
	}
	for taken := uint32(1); err == nil && len(got) < ref.Bytes; taken++ {
		var m *nats.Msg
		if m, err = sub.NextMsgWithContext(wiretest.Context(t)); err != nil {
			break
		}
		if len(m.Data) <= 16 || binary.BigEndian.Uint32(m.Data) != taken-1 ||
			binary.BigEndian.Uint32(m.Data[4:]) != crc32.ChecksumIEEE(m.Data[16:]) ||
			binary.BigEndian.Uint64(m.Data[8:]) != uint64(len(got)) {
			t.Fatalf("chunk %d after %d bytes: %x, %s", taken-1, len(got), m.Data[:min(16, len(m.Data))],
				m.Header.Get("Patchbay-Error"))
		}
		got = append(got, m.Data[16:]...)
		err = m.Respond(binary.BigEndian.AppendUint32(nil, taken))
	}
	if err != nil {
		t.Fatal(err)
	}
	return got
}

// TestWhatIsGoneIsRefused checks that references to objects of JetStream, as tensors and as bytes, and hashes of
// tensors, alone or beside data or a reference, are refused by name and with what to use instead. The reply to a client
// that accepts objects alone comes inside the message.
func TestWhatIsGoneIsRefused(t *testing.T) {
	c, _ := payloadRig(t, nil)
	ctx := wiretest.Context(t)
	const (
		object  = `{"kind": "object", "bytes": 4, "name": "in/big"}`
		objects = "reference of kind object: objects of JetStream are no longer read; send the bytes in the message"
		hash    = `"hash": "` + "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08" + `"`
		hashes  = "tensor: hash: tensors are no longer kept by their hash; send data or ref"
	)
	exec := func(rest string) string {
		return `{"class_type": "Sum", "inputs": {"value": {"$tensor": {"dtype": "u8", "shape": [4], ` + rest + `}}}}`
	}
	for _, b := range []struct{ verb, body, want string }{
		{message.VerbExec, exec(`"ref": ` + object), objects},
		{
			message.VerbSubmit, `{"workflow": {"1": {"class_type": "Picture", "inputs": {"n": 7}}}, "inputs": {"a.png": ` +
				`{"$bytes": ` + object + `}}}`, objects,
		},
		{message.VerbExec, exec(hash), hashes},
		{message.VerbExec, exec(`"data": "dGVzdA==", ` + hash), hashes},
		{message.VerbExec, exec(`"ref": {"kind": "stream", "bytes": 4, "subject": "_INBOX.x", "id": "x"}, ` + hash), hashes},
		{message.VerbSample, `{"latent": {"$tensor": {"dtype": "f32", "shape": [1, 1, 2, 2], ` + hash + `}}}`, hashes},
	} {
		m, err := c.Conn().RequestMsgWithContext(ctx,
			&nats.Msg{Subject: message.VerbSubject(b.verb, ""), Data: []byte(b.body)})
		if err != nil || !strings.Contains(string(m.Data), `"code":"bad_request"`) ||
			!strings.Contains(string(m.Data), b.want) {
			t.Errorf("%s %s: %v, got %s", b.verb, b.body, err, m.Data)
		}
	}
	body, err := wire.EncodeMsgpack(&message.ExecRequest{
		Class:  "Echo",
		Inputs: pyjson.NewObject("value", &array.Tensor{DType: "u8", Shape: []int{1 << 20}, Data: wiretest.Noise(1 << 20)}),
	})
	if err != nil {
		t.Fatal(err)
	}
	m, err := c.Conn().RequestMsgWithContext(ctx, &nats.Msg{
		Subject: message.VerbSubject(message.VerbExec, ""), Data: body, Header: nats.Header{wire.HeaderAccept: {"object"}},
	})
	if err != nil {
		t.Fatal(err)
	}
	o, err := wire.Decode(m.Data, wire.Msgpack, wire.DefaultLimits())
	if err != nil {
		t.Fatal(err)
	}
	list, _ := o.Get("outputs")
	if got := list.([]any)[0].(*wire.Tensor); got.Ref != nil || !bytes.Equal(got.Data, wiretest.Noise(1<<20)) {
		t.Errorf("got %d bytes and the reference %+v", len(got.Data), got.Ref)
	}
}

// TestHostileStreams plays the sender of a tensor that breaks its promise. Every way is refused at once with its own
// error, and nothing is left behind.
func TestHostileStreams(t *testing.T) {
	c, n := payloadRig(t, func(n *serve.NATS) { n.Blobs().Silence = 300 * time.Millisecond })
	ctx := wiretest.Context(t)
	data := wiretest.Noise(3 << 20)
	chunk := func(number, at int, b []byte) []byte {
		head := binary.BigEndian.AppendUint32(nil, uint32(number))
		head = binary.BigEndian.AppendUint32(head, crc32.ChecksumIEEE(b))
		return append(binary.BigEndian.AppendUint64(head, uint64(at)), b...)
	}
	const size = 512 << 10
	good := func(i int) []byte { return chunk(i, i*size, data[i*size:(i+1)*size]) }
	ruined := good(1)
	ruined[100]++
	for want, chunks := range map[string][][]byte{
		"":                              {good(0), good(1), good(2), good(3), good(4), good(5)},
		"chunk 1 is missing, 2 came":    {good(0), good(2)},
		"chunk 0 came twice":            {good(0), good(0)},
		"chunk 1 was damaged":           {good(0), ruined},
		"want 524288":                   {good(0), chunk(1, 0, data[:size])},
		"at most 524288 were asked for": {chunk(0, 0, data[:size+1])},
		"was to have 3145728 bytes": {
			good(0), good(1), good(2), good(3), good(4),
			chunk(5, 5*size, data[:size])[:16+size], good(5),
		},
		"a chunk of 16 bytes":           {good(0), chunk(1, size, nil)},
		"no chunk for 300ms after 1048": {good(0), good(1)},
		"no chunk for 300ms after 0":    nil,
	} {
		if want == "was to have 3145728 bytes" {
			chunks = [][]byte{
				good(0), good(1), good(2), good(3), good(4), chunk(5, 5*size, data[:size-1]),
				chunk(6, 6*size-1, data[:2]),
			}
		}
		subject := c.Conn().NewInbox()
		sub, err := c.Conn().Subscribe(subject, func(m *nats.Msg) {
			for _, b := range chunks {
				_ = c.Conn().PublishMsg(&nats.Msg{Subject: m.Reply, Reply: subject + ".ack", Data: b})
			}
		})
		if err != nil {
			t.Fatal(err)
		}
		var out message.ExecReply
		err = client.AskOne(ctx, c, message.VerbExec, "", map[string]any{"class_type": "Sum", "inputs": map[string]any{
			"value": &wire.Tensor{
				Tensor: array.Tensor{DType: "u8", Shape: []int{len(data)}},
				Ref:    &wire.Ref{Kind: wire.RefStream, Bytes: len(data), Subject: subject, ID: "x"},
			},
		}}, &out)
		switch {
		case want == "" && err == nil:
		case want == "" || wiretest.Code(err) != fault.BadPayload || !strings.Contains(err.Error(), want):
			t.Errorf("got %v, want %q", err, want)
		}
		_ = sub.Unsubscribe()
	}
	refused := map[string]*wire.Ref{
		"gone":       {Kind: wire.RefStream, Bytes: 3 << 20, Subject: c.Conn().NewInbox(), ID: "x"}, // no subscriber
		"inbox":      {Kind: wire.RefStream, Bytes: 3 << 20, Subject: "$JS.API.STREAM.PURGE.X", ID: "x"},
		"under your": {Kind: wire.RefStream, Bytes: 3 << 20, Subject: wire.SubjectRoot + "free", ID: "x"},
		"want 1 to":  {Kind: wire.RefStream, Bytes: wire.MaxRegion + 1, Subject: "a", ID: "x"},
		"on a unix":  {Kind: wire.RefShm, Bytes: 3 << 20},
		"got 4":      {Kind: wire.RefStream, Bytes: 4, Subject: "a", ID: "x"},
	}
	for want, ref := range refused {
		err := client.AskOne(ctx, c, message.VerbExec, "",
			map[string]any{"class_type": "Sum", "inputs": map[string]any{"value": &wire.Tensor{
				Tensor: array.Tensor{DType: "u8", Shape: []int{3 << 20}},
				Ref:    ref,
			}}}, &message.ExecReply{})
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
	}
	untilGivenBack(t, n.Blobs())
}

// TestAbandonedStreams checks that when a client pulls a result and goes silent, the daemon gives up the transfer, then
// the offer.
func TestAbandonedStreams(t *testing.T) {
	c, n := payloadRig(t, func(n *serve.NATS) {
		n.Blobs().Silence, n.Blobs().Life = 200*time.Millisecond,
			300*time.Millisecond
	})
	ctx := wiretest.Context(t)
	ref := n.Blobs().Offer(wiretest.Noise(20<<20), nil)
	sub, err := c.Conn().SubscribeSync(c.Conn().NewInbox())
	if err != nil {
		t.Fatal(err)
	}
	ask, err := wire.EncodeMsgpack(map[string]any{"id": ref.ID, "chunk": bulk.ChunkBytes, "window": 4})
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Conn().PublishRequest(ref.Subject, sub.Subject, ask); err != nil {
		t.Fatal(err)
	}
	var ack string
	for i := range 4 {
		m, err := sub.NextMsgWithContext(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if got := binary.BigEndian.Uint32(m.Data); got != uint32(i) {
			t.Fatalf("chunk %d came as number %d", got, i)
		}
		ack = m.Reply
	}
	if m, err := sub.NextMsg(100 * time.Millisecond); err == nil {
		t.Errorf("a fifth chunk of %d bytes without a credit", len(m.Data))
	}
	for _, credit := range [][]byte{nil, {1}, {0xff, 0xff, 0xff, 0xff}} { // invalid credit ends it
		if err := c.Conn().Publish(ack, credit); err != nil {
			t.Fatal(err)
		}
	}
	untilGivenBack(t, n.Blobs())
	if err := c.Conn().PublishRequest(ref.Subject, sub.Subject, ask); err != nil {
		t.Fatal(err)
	}
	for {
		m, err := sub.NextMsgWithContext(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if why := m.Header.Get("Patchbay-Error"); why != "" {
			if !strings.Contains(why, "nothing is offered") {
				t.Errorf("a late pull: %s", why)
			}
			break
		}
	}
}

// BenchmarkTensorOverNATS sends a 64 MiB tensor in chunks with credits to a daemon in this process.
func BenchmarkTensorOverNATS(b *testing.B) {
	c, _ := payloadRig(b, nil)
	body := &message.ExecRequest{
		Class: "Sum",
		Inputs: pyjson.NewObject("value", &array.Tensor{
			DType: "f32", Shape: []int{16, 1024, 1024}, Data: make([]byte, 64<<20),
		}),
	}
	b.SetBytes(64 << 20)
	for b.Loop() {
		if err := client.AskOne(context.Background(), c, message.VerbExec, "", body, &struct{}{}); err != nil {
			b.Fatal(err)
		}
	}
}
