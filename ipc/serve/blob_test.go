package serve_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"hash/crc32"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
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

// TestObjectsAsPayloads uploads an object with a window, refers to it in several ways, and gets results as objects.
func TestObjectsAsPayloads(t *testing.T) {
	c, n := payloadRig(t, nil)
	ctx := wiretest.Context(t)
	data := wiretest.Noise(30<<20 + 17)
	ref, err := ipctest.Upload(ctx, c, "in/big", data)
	if err != nil {
		t.Fatal(err)
	}
	tensor := func(r wire.Ref) map[string]any {
		return map[string]any{
			"class_type": "Sum",
			"inputs": map[string]any{"value": &wire.Tensor{
				Tensor: array.Tensor{DType: "u8", Shape: []int{r.Bytes}},
				Ref:    &r,
			}},
		}
	}
	var out message.ExecReply
	if err := client.AskOne(ctx, c, message.VerbExec, "", tensor(*ref), &out); err != nil ||
		out.Outputs[1] != int64(len(data)) {
		t.Fatalf("got %v, %v", out.Outputs, err)
	}
	if err := client.AskOne(ctx, c, message.VerbExec, "",
		tensor(wire.Ref{Kind: wire.RefObject, Bytes: ref.Bytes, Name: ref.Name}), &out); err != nil {
		t.Errorf("without a digest: %v", err)
	}
	for name, r := range map[string]wire.Ref{
		"has 31457297 bytes": {Kind: wire.RefObject, Bytes: ref.Bytes - 1, Name: ref.Name},
		"SHA-256 is":         {Kind: wire.RefObject, Bytes: ref.Bytes, Name: ref.Name, SHA256: strings.Repeat("0", 64)},
		"not found":          {Kind: wire.RefObject, Bytes: ref.Bytes, Name: "in/none"},
	} {
		if err := client.AskOne(ctx, c, message.VerbExec, "", tensor(r), &out); wiretest.Code(err) != fault.BadPayload ||
			!strings.Contains(err.Error(), name) {
			t.Errorf("want %s: got %v", name, err)
		}
	}
	// A file of a job in JSON, as a person at a shell sends it; the result as an object.
	body := []byte(`{"workflow": {"1": {"class_type": "Picture", "inputs": {"n": 700000}}}, "inputs": {"a.png": ` +
		`{"$bytes": {"kind": "object", "bytes": 31457297, "name": "in/big"}}}}`)
	m, err := c.Conn().RequestMsgWithContext(ctx,
		&nats.Msg{Subject: message.VerbSubject(message.VerbSubmit, ""), Data: body})
	if err != nil || !strings.Contains(string(m.Data), `"accepted"`) {
		t.Fatalf("submit: %v %s", err, m.Data)
	}
	exec, err := wire.EncodeMsgpack(&message.ExecRequest{
		Class:  "Echo",
		Inputs: pyjson.NewObject("value", &array.Tensor{DType: "u8", Shape: []int{1 << 20}, Data: data[:1<<20]}),
	})
	if err != nil {
		t.Fatal(err)
	}
	m, err = c.Conn().RequestMsgWithContext(ctx,
		&nats.Msg{
			Subject: message.VerbSubject(message.VerbExec, ""), Data: exec,
			Header: nats.Header{wire.HeaderAccept: {"object"}},
		})
	if err != nil {
		t.Fatal(err)
	}
	o, err := wire.Decode(m.Data, wire.Msgpack, wire.DefaultLimits())
	if err != nil {
		t.Fatal(err)
	}
	list, _ := o.Get("outputs")
	got := list.([]any)[0].(*wire.Tensor)
	if got.Ref == nil || got.Ref.Kind != wire.RefObject {
		t.Fatalf("got %+v", got)
	}
	r, err := n.Objects().Get(ctx, got.Ref, n.Blobs().Region)
	if err != nil || !bytes.Equal(r.Bytes(), data[:1<<20]) {
		t.Fatalf("the object is not what was sent: %v", err)
	}
	r.Release()
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

// TestUploadsAreReadByOthers checks that the NATS library reads an upload.
func TestUploadsAreReadByOthers(t *testing.T) {
	c, _ := payloadRig(t, nil)
	ctx := wiretest.Context(t)
	data := wiretest.Noise(5<<20 + 1)
	ref, err := ipctest.Upload(ctx, c, "a b/ü", data)
	if err != nil {
		t.Fatal(err)
	}
	js, err := jetstream.New(c.Conn())
	if err != nil {
		t.Fatal(err)
	}
	store, err := js.ObjectStore(ctx, bulk.BlobBucket)
	if err != nil {
		t.Fatal(err)
	}
	got, err := store.GetBytes(ctx, "a b/ü")
	if sum := sha256.Sum256(data); err != nil || !bytes.Equal(got, data) || ref.SHA256 != hex.EncodeToString(sum[:]) {
		t.Fatalf("got %d bytes, %v", len(got), err)
	}
	st, err := store.Status(ctx)
	if err != nil || st.TTL() != 24*time.Hour {
		t.Errorf("the bucket keeps objects for %v, want 24h (%v)", st.TTL(), err)
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
