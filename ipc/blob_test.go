package ipc

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
	"github.com/rs/zerolog"

	"patchbay/node"
)

// payloadRig is a rig on a server with JetStream; tune may change the carrier before it serves.
func payloadRig(t testing.TB, tune func(*NATS), executors ...Executor) (*NATSClient, *NATS) {
	t.Helper()
	e, err := StartEmbedded(EmbeddedConfig{Listen: "127.0.0.1:0", Store: t.TempDir(), Log: zerolog.Nop()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(e.Close)
	n, err := ConnectNATS(NATSConfig{URL: e.URL(), Version: "0.1.0", Listens: e.Listens, Log: zerolog.Nop()})
	if err != nil {
		t.Fatal(err)
	}
	if tune != nil {
		tune(n)
	}
	serveNATS(t, n, newRig(t, JobsConfig{OnEvent: n.Event}, ShelfConfig{}, executors...))
	c, err := DialNATS(e.URL())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c, n
}

// TestTensorsInChunks sends tensors over NATS there and back, of sizes around those of messages and chunks.
func TestTensorsInChunks(t *testing.T) {
	c, n := payloadRig(t, nil)
	ctx := within(t, 60*time.Second)
	for _, size := range []int{1000, bulkBytes, bulkBytes + 1, chunkWindow * chunkBytes, 20<<20 + 3} {
		want := &Tensor{DType: "u8", Shape: []int{size}, Data: noise(size)}
		var out ExecReply
		if err := askOne(ctx, c, VerbExec, "", &ExecRequest{Class: "Echo", Inputs: node.NewObject("value", want)}, &out); err != nil {
			t.Fatalf("%d bytes: %v", size, err)
		}
		if got, ok := out.Outputs[0].(*Tensor); !ok || !bytes.Equal(got.Data, want.Data) {
			t.Fatalf("%d bytes came back as %T", size, out.Outputs[0])
		}
	}
	// Many that would each go inside.
	list := []any{}
	for range 40 {
		list = append(list, &Tensor{DType: "u8", Shape: []int{300 << 10}, Data: noise(300 << 10)})
	}
	var out ExecReply
	if err := askOne(ctx, c, VerbExec, "", &ExecRequest{Class: "Echo", Inputs: node.NewObject("value", list)}, &out); err != nil {
		t.Fatal(err)
	}
	if got := out.Outputs[0].([]any); len(got) != 40 || !bytes.Equal(got[39].(*Tensor).Data, noise(300<<10)) {
		t.Errorf("got %d tensors", len(got))
	}
	_, col, end := runJob(t, c, &RunRequest{Workflow: graph("Picture 9000000"), Inputs: map[string][]byte{"a": noise(10 << 20)}})
	if end.Type != EventSuccess || len(col.Files) != 1 || !bytes.Equal(col.Files[0].Data, fakePicture("1", 9000000).Data) {
		t.Errorf("got %+v and %d files", end, len(col.Files))
	}
	for end := time.Now().Add(time.Minute); n.blobs.taken.Load() != 0 || n.blobs.left() != 0; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%d bytes and %d offers are left in the daemon", n.blobs.taken.Load(), n.blobs.left())
		}
	}
	if c.blobs.left() != 0 || c.blobs.taken.Load() != 0 {
		t.Errorf("%d offers and %d bytes are left in the client", c.blobs.left(), c.blobs.taken.Load())
	}
}

// left counts offers and transfers.
func (b *blobs) left() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.offers) + len(b.sending)
}

// TestObjectsAsPayloads uploads with a window, refers to it in several ways, and gets results as objects.
func TestObjectsAsPayloads(t *testing.T) {
	c, n := payloadRig(t, nil)
	ctx := within(t, 60*time.Second)
	data := noise(30<<20 + 17)
	ref, err := c.Upload(ctx, "in/big", data)
	if err != nil {
		t.Fatal(err)
	}
	tensor := func(r Ref) map[string]any {
		return map[string]any{"class_type": "Sum", "inputs": map[string]any{"value": &Tensor{DType: "u8", Shape: []int{r.Bytes}, Ref: &r}}}
	}
	var out ExecReply
	if err := askOne(ctx, c, VerbExec, "", tensor(*ref), &out); err != nil || out.Outputs[1] != int64(len(data)) {
		t.Fatalf("got %v, %v", out.Outputs, err)
	}
	if err := askOne(ctx, c, VerbExec, "", tensor(Ref{Kind: RefObject, Bytes: ref.Bytes, Name: ref.Name}), &out); err != nil {
		t.Errorf("without a digest: %v", err)
	}
	for name, r := range map[string]Ref{
		"has 31457297 bytes": {Kind: RefObject, Bytes: ref.Bytes - 1, Name: ref.Name},
		"SHA-256 is":         {Kind: RefObject, Bytes: ref.Bytes, Name: ref.Name, SHA256: strings.Repeat("0", 64)},
		"not found":          {Kind: RefObject, Bytes: ref.Bytes, Name: "in/none"},
	} {
		if err := askOne(ctx, c, VerbExec, "", tensor(r), &out); code(err) != ErrPayload || !strings.Contains(err.Error(), name) {
			t.Errorf("want %s: got %v", name, err)
		}
	}
	// A file of a job in JSON, as a person at a shell sends it; the result as an object.
	body := []byte(`{"workflow": {"1": {"class_type": "Picture", "inputs": {"n": 700000}}}, "inputs": {"a.png": {"$bytes": {"kind": "object", "bytes": 31457297, "name": "in/big"}}}}`)
	m, err := c.nc.RequestMsgWithContext(ctx, &nats.Msg{Subject: VerbSubject(VerbSubmit, ""), Data: body})
	if err != nil || !strings.Contains(string(m.Data), `"accepted"`) {
		t.Fatalf("submit: %v %s", err, m.Data)
	}
	exec, err := encodeMsgpack(&ExecRequest{Class: "Echo", Inputs: node.NewObject("value", &Tensor{DType: "u8", Shape: []int{1 << 20}, Data: data[:1<<20]})})
	if err != nil {
		t.Fatal(err)
	}
	m, err = c.nc.RequestMsgWithContext(ctx, &nats.Msg{Subject: VerbSubject(VerbExec, ""), Data: exec, Header: nats.Header{headerAccept: {"object"}}})
	if err != nil {
		t.Fatal(err)
	}
	o, err := Decode(m.Data, Msgpack, DefaultLimits())
	if err != nil {
		t.Fatal(err)
	}
	list, _ := o.Get("outputs")
	got := list.([]any)[0].(*Tensor)
	if got.Ref == nil || got.Ref.Kind != RefObject {
		t.Fatalf("got %+v", got)
	}
	r, err := n.store.get(ctx, got.Ref, n.blobs.region)
	if err != nil || !bytes.Equal(r.Bytes(), data[:1<<20]) {
		t.Fatalf("the object is not what was sent: %v", err)
	}
	r.Release()
}

// TestHostileStreams plays the sender of a tensor that is not what was promised. Every way ends in its own refusal, at once, and nothing stays.
func TestHostileStreams(t *testing.T) {
	c, n := payloadRig(t, func(n *NATS) { n.blobs.silence = 300 * time.Millisecond })
	ctx := within(t, 60*time.Second)
	data := noise(3 << 20)
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
		"was to have 3145728 bytes":     {good(0), good(1), good(2), good(3), good(4), chunk(5, 5*size, data[:size])[:chunkHead+size], good(5)},
		"a chunk of 16 bytes":           {good(0), chunk(1, size, nil)},
		"no chunk for 300ms after 1048": {good(0), good(1)},
		"no chunk for 300ms after 0":    nil,
	} {
		if want == "was to have 3145728 bytes" {
			chunks = [][]byte{good(0), good(1), good(2), good(3), good(4), chunk(5, 5*size, data[:size-1]), chunk(6, 6*size-1, data[:2])}
		}
		subject := c.nc.NewInbox()
		sub, err := c.nc.Subscribe(subject, func(m *nats.Msg) {
			for _, b := range chunks {
				_ = c.nc.PublishMsg(&nats.Msg{Subject: m.Reply, Reply: subject + ".ack", Data: b})
			}
		})
		if err != nil {
			t.Fatal(err)
		}
		var out ExecReply
		began := time.Now()
		err = askOne(ctx, c, VerbExec, "", map[string]any{"class_type": "Sum", "inputs": map[string]any{
			"value": &Tensor{DType: "u8", Shape: []int{len(data)}, Ref: &Ref{Kind: RefStream, Bytes: len(data), Subject: subject, ID: "x"}},
		}}, &out)
		if took := time.Since(began); took > 20*time.Second {
			t.Errorf("%q took %s", want, took)
		}
		switch {
		case want == "" && err == nil:
		case want == "" || code(err) != ErrPayload || !strings.Contains(err.Error(), want):
			t.Errorf("got %v, want %q", err, want)
		}
		_ = sub.Unsubscribe()
	}
	refused := map[string]*Ref{
		"gone":         {Kind: RefStream, Bytes: 3 << 20, Subject: c.nc.NewInbox(), ID: "x"}, // nobody listens
		"inbox":        {Kind: RefStream, Bytes: 3 << 20, Subject: "$JS.API.STREAM.PURGE.X", ID: "x"},
		"under your":   {Kind: RefStream, Bytes: 3 << 20, Subject: subjectRoot + "free", ID: "x"},
		"want 1 to":    {Kind: RefStream, Bytes: maxRegion + 1, Subject: "a", ID: "x"},
		"on a unix":    {Kind: RefShm, Bytes: 3 << 20},
		"does not fit": {Kind: RefStream, Bytes: 4, Subject: "a", ID: "x"},
	}
	for want, ref := range refused {
		err := askOne(ctx, c, VerbExec, "", map[string]any{"class_type": "Sum", "inputs": map[string]any{"value": &Tensor{DType: "u8", Shape: []int{3 << 20}, Ref: ref}}}, &ExecReply{})
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
	}
	for end := time.Now().Add(time.Minute); n.blobs.taken.Load() != 0; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%d bytes are still taken", n.blobs.taken.Load())
		}
	}
}

// TestAbandonedStreams pulls a result and goes silent: the daemon gives the transfer up, and then the offer.
func TestAbandonedStreams(t *testing.T) {
	c, n := payloadRig(t, func(n *NATS) { n.blobs.silence, n.blobs.life = 200*time.Millisecond, 300*time.Millisecond })
	ctx := within(t, 30*time.Second)
	ref := n.blobs.offer(noise(20<<20), nil)
	sub, err := c.nc.SubscribeSync(c.nc.NewInbox())
	if err != nil {
		t.Fatal(err)
	}
	ask, err := encodeMsgpack(pull{ID: ref.ID, Chunk: chunkBytes, Window: 4})
	if err != nil {
		t.Fatal(err)
	}
	if err := c.nc.PublishRequest(ref.Subject, sub.Subject, ask); err != nil {
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
	for _, credit := range [][]byte{nil, {1}, {0xff, 0xff, 0xff, 0xff}} { // nonsense ends it
		if err := c.nc.Publish(ack, credit); err != nil {
			t.Fatal(err)
		}
	}
	for end := time.Now().Add(time.Minute); n.blobs.left() != 0; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%d offers and transfers are left", n.blobs.left())
		}
	}
	if err := c.nc.PublishRequest(ref.Subject, sub.Subject, ask); err != nil {
		t.Fatal(err)
	}
	for {
		m, err := sub.NextMsgWithContext(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if why := m.Header.Get(headerFault); why != "" {
			if !strings.Contains(why, "nothing is offered") {
				t.Errorf("a late pull: %s", why)
			}
			break
		}
	}
}

// TestUploadsAreReadByOthers compares the layout of an upload with what the NATS library reads.
func TestUploadsAreReadByOthers(t *testing.T) {
	c, n := payloadRig(t, nil)
	ctx := within(t, 30*time.Second)
	data := noise(5<<20 + 1)
	ref, err := c.Upload(ctx, "a b/ü", data)
	if err != nil {
		t.Fatal(err)
	}
	store, err := n.store.js.ObjectStore(ctx, blobBucket)
	if err != nil {
		t.Fatal(err)
	}
	got, err := store.GetBytes(ctx, "a b/ü")
	if sum := sha256.Sum256(data); err != nil || !bytes.Equal(got, data) || ref.SHA256 != hex.EncodeToString(sum[:]) {
		t.Fatalf("got %d bytes, %v", len(got), err)
	}
	st, err := store.Status(ctx)
	if err != nil || st.TTL() != blobTTL {
		t.Errorf("the bucket keeps objects for %v, want %s (%v)", st.TTL(), blobTTL, err)
	}
}

// BenchmarkTensorOverNATS sends a 64 MiB tensor in chunks with credits to a daemon in this process.
func BenchmarkTensorOverNATS(b *testing.B) {
	c, _ := payloadRig(b, nil)
	body := &ExecRequest{Class: "Sum", Inputs: node.NewObject("value", &Tensor{DType: "f32", Shape: []int{16, 1024, 1024}, Data: make([]byte, 64<<20)})}
	b.SetBytes(64 << 20)
	for b.Loop() {
		if err := askOne(context.Background(), c, VerbExec, "", body, &struct{}{}); err != nil {
			b.Fatal(err)
		}
	}
}
