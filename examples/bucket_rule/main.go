// Command bucket_rule is a rule "picture put into a bucket -> workflow -> result in another bucket" on the object store
// of the daemon's NATS server.
//
//	go run ./examples/bucket_rule [--nats URL] [--from pictures] [--to results] [--flow examples/invert.json] [--count N]
//	nats object put pictures photo.png
//	nats object get results photo.png
//
// The picture travels with its job, as input "picture.png" of the workflow. The job's id is made of the picture's
// digest: a rule that was killed and started again, or two rules side by side, run no picture twice, and pictures that
// were put while no rule ran are done first.
package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"hash/fnv"
	"os"
	"os/signal"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// rule is what is done with every picture.
type rule struct {
	flow     string // workflow that loads picture.png
	nc       *nats.Conn
	from, to jetstream.ObjectStore
}

func main() {
	url := flag.String("nats", nats.DefaultURL, "NATS server of the daemon")
	from := flag.String("from", "pictures", "bucket to watch; made if missing")
	to := flag.String("to", "results", "bucket for the results; made if missing")
	flow := flag.String("flow", "examples/invert.json", "workflow in API format that loads picture.png")
	count := flag.Int("count", 0, "stop after so many pictures; 0: never")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := watch(ctx, *url, *from, *to, *flow, *count); err != nil && ctx.Err() == nil {
		fmt.Fprintln(os.Stderr, "bucket_rule:", err)
		os.Exit(1) //nolint:gocritic // nothing is left to clean up
	}
}

func watch(ctx context.Context, url, from, to, flow string, count int) error {
	text, err := os.ReadFile(flow)
	if err != nil {
		return err
	}
	nc, err := nats.Connect(url, nats.Name("example rule"), nats.MaxReconnects(-1))
	if err != nil {
		return err
	}
	defer nc.Close()
	js, err := jetstream.New(nc)
	if err != nil {
		return err
	}
	r := &rule{flow: string(text), nc: nc}
	if r.from, err = js.CreateOrUpdateObjectStore(ctx, jetstream.ObjectStoreConfig{Bucket: from}); err != nil {
		return err
	}
	if r.to, err = js.CreateOrUpdateObjectStore(ctx, jetstream.ObjectStoreConfig{Bucket: to}); err != nil {
		return err
	}
	w, err := r.from.Watch(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = w.Stop() }()
	for done := 0; count == 0 || done < count; {
		select {
		case <-ctx.Done():
			return nil
		case o, ok := <-w.Updates():
			switch {
			case !ok:
				return errors.New("the watch on the bucket ended")
			case o == nil || o.Deleted: // nil: all that was there has been seen
				continue
			}
			if err := r.apply(ctx, o); err != nil {
				return fmt.Errorf("%s: %w", o.Name, err)
			}
			done++
		}
	}
	return nil
}

// apply runs the workflow on one picture, unless its result is there.
func (r *rule) apply(ctx context.Context, o *jetstream.ObjectInfo) error {
	sum := fnv.New128a()
	_, _ = fmt.Fprintf(sum, "%s\n%s\n%s", o.Name, o.Digest, r.flow)
	id := "rule-" + hex.EncodeToString(sum.Sum(nil))
	if have, err := r.to.GetInfo(ctx, o.Name); err == nil && have.Description == id {
		fmt.Printf("%s\tis there\n", o.Name)
		return nil
	}
	picture, err := r.from.GetBytes(ctx, o.Name)
	if err != nil {
		return err
	}
	data, err := r.run(ctx, id, picture)
	if err != nil {
		return err
	}
	meta := jetstream.ObjectMeta{Name: o.Name, Description: id}
	if _, err := r.to.Put(ctx, meta, bytes.NewReader(data)); err != nil {
		return err
	}
	fmt.Printf("%s\t%s\t%d bytes\n", o.Name, id, len(data))
	return nil
}

// silence is how long a daemon may say nothing: it shows a sign of life every 2 s.
const silence = 30 * time.Second

// ask sends a request. next returns its replies, one after the other, until end is called.
func (r *rule) ask(ctx context.Context, subject string, body any) (
	next func() (*nats.Msg, error), end func(), err error,
) {
	text, err := json.Marshal(body)
	if err != nil {
		return nil, nil, err
	}
	inbox := r.nc.NewInbox()
	sub, err := r.nc.SubscribeSync(inbox)
	if err != nil {
		return nil, nil, err
	}
	next = func() (*nats.Msg, error) {
		wait, stop := context.WithTimeout(ctx, silence)
		defer stop()
		return sub.NextMsgWithContext(wait)
	}
	return next, func() { _ = sub.Unsubscribe() }, r.nc.PublishRequest(subject, inbox, text)
}

// run sends the job and returns its first picture. The same id again is the same job: it is never run twice.
func (r *rule) run(ctx context.Context, id string, picture []byte) ([]byte, error) {
	next, done, err := r.ask(ctx, "patchbay.v1.run", map[string]any{
		"v": 1, "id": id, "workflow": r.flow, "inputs": map[string][]byte{"picture.png": picture},
	})
	if err != nil {
		return nil, err
	}
	defer done()
	var file []byte
	for end := "nothing"; ; {
		m, err := next()
		switch {
		case err != nil:
			return nil, err
		case m.Header.Get("Status") == "503":
			return nil, errors.New("no daemon answers")
		case len(m.Data) == 0 && end != "execution_success":
			return nil, fmt.Errorf("job %s ended with %s", id, end)
		case len(m.Data) == 0:
			return file, nil
		}
		var reply struct {
			Type   string
			Output int
			Data   json.RawMessage // of a file in base64; of an event an object
			Error  *struct{ Code, Message string }
		}
		if err := json.Unmarshal(m.Data, &reply); err != nil {
			return nil, err
		}
		if reply.Error != nil {
			return nil, fmt.Errorf("job %s: %s: %s", id, reply.Error.Code, reply.Error.Message)
		}
		if end = reply.Type; end == "output" && reply.Output == 0 && reply.Data != nil {
			if file, err = r.file(ctx, reply.Data); err != nil {
				return nil, err
			}
		}
	}
}

// stream is where a file is that does not fit in a message.
type stream struct {
	Subject, ID string
	Bytes       int
}

// file returns the bytes of a file: those in the data of its message, or those of the stream that it names.
func (r *rule) file(ctx context.Context, data json.RawMessage) (file []byte, err error) {
	var at struct {
		Bytes *stream `json:"$bytes"`
	}
	if json.Unmarshal(data, &at) == nil && at.Bytes != nil {
		return r.pull(ctx, *at.Bytes)
	}
	return file, json.Unmarshal(data, &file)
}

// head is the length of what comes before the data of a chunk: its number, checksum and offset.
const head = 16

// pull asks for the chunks of a stream, and acknowledges each.
func (r *rule) pull(ctx context.Context, from stream) (file []byte, err error) {
	next, done, err := r.ask(ctx, from.Subject, map[string]any{"id": from.ID, "chunk": 512 << 10, "window": 16})
	if err != nil {
		return nil, err
	}
	defer done()
	for taken := uint32(1); len(file) < from.Bytes; taken++ {
		m, err := next()
		switch {
		case err != nil:
			return nil, err
		case len(m.Data) <= head:
			return nil, fmt.Errorf("no chunk: %s", m.Header.Get("Patchbay-Error"))
		case binary.BigEndian.Uint64(m.Data[8:]) != uint64(len(file)):
			return nil, fmt.Errorf("a chunk for another place than %d", len(file))
		}
		file = append(file, m.Data[head:]...)
		if err := m.Respond(binary.BigEndian.AppendUint32(nil, taken)); err != nil {
			return nil, err
		}
	}
	return file, nil
}
