package client

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"patchbay/ipc/bulk"
	"patchbay/ipc/message"
	"patchbay/ipc/wire"
	"patchbay/node/pyjson"
)

// Collector assembles the messages of one run, or of one status with outputs: events, files in pieces, previews.
type Collector struct {
	Event    func(message.Event)         // every event, terminal one included; nil: ignored
	Preview  func(node string, p []byte) // nil: ignored
	Accepted func(message.Receipt)       // nil: ignored
	Beat     func()                      // a sign of life while nothing happens; nil: ignored
	File     func(message.File)          // every file when it is complete; nil: ignored
	Files    []message.File
	Hold     *bulk.Hold // shared memory in which Files lie after RunHeld
	// longest pause between two messages, after which the daemon counts as lost; 0: Silence, negative: no limit
	Silence time.Duration

	unasked bool // no files were asked for
	named   int  // number of files of the job, as its record or terminal event says
}

// errGap ends a stream that lacks a message: a network of NATS servers may lose one without telling either side.
var errGap = errors.New("a reply did not arrive")

// restart forgets the files: the next stream carries them again.
func (c *Collector) restart() {
	c.Hold.Release()
	c.Files, c.Hold, c.named = nil, nil, 0
}

// Run reads replies until the end and returns the terminal event, if any. Files no longer lie in shared memory.
func (c *Collector) Run(ctx context.Context, r *Replies) (*message.Event, error) {
	end, err := c.RunHeld(ctx, r)
	for i := range c.Files {
		if c.Hold.Has(c.Files[i].Data) {
			c.Files[i].Data = bytes.Clone(c.Files[i].Data)
		}
	}
	c.Hold.Release()
	c.Hold = nil
	return end, err
}

// RunHeld is Run but leaves files in shared memory, which the caller releases with Hold.
func (c *Collector) RunHeld(ctx context.Context, r *Replies) (*message.Event, error) {
	var last *message.Event
	for {
		m, err := r.within(ctx, cmp.Or(c.Silence, Silence))
		c.Hold = c.Hold.Join(m.Hold)
		o := m.Fields
		if errors.Is(err, io.EOF) {
			return last, c.complete()
		}
		if err != nil {
			return last, err
		}
		ev, err := c.Add(o)
		if err != nil {
			return last, err
		}
		if ev == nil || !message.Terminal(ev.Type) {
			continue
		}
		last = ev
		files, _ := ev.Data["outputs"].([]any) // none if they were dropped meanwhile, whatever the record said
		c.named = len(files)
	}
}

// Add processes one message and returns it if it is an event.
func (c *Collector) Add(o *pyjson.Object) (*message.Event, error) {
	kind, _ := o.Get("type")
	switch kind {
	case message.ReplyHeartbeat:
		if c.Beat != nil {
			c.Beat()
		}
		return nil, nil
	case "record":
		files, _ := o.Get("outputs")
		list, _ := files.([]any)
		c.named = len(list)
		return nil, nil
	case message.ReplyAccepted:
		var r message.Receipt
		err := wire.BindReply(o, &r)
		if err == nil && c.Accepted != nil {
			c.Accepted(r)
		}
		return nil, err
	case message.ReplyPreview:
		var p message.Preview
		err := wire.BindReply(o, &p)
		if err == nil && c.Preview != nil {
			c.Preview(p.Node, p.Data)
		}
		return nil, err
	case message.ReplyOutput:
		return nil, c.output(o)
	}
	ev, err := message.EventOf(o)
	if err == nil && c.Event != nil {
		c.Event(*ev)
	}
	return ev, err
}

func (c *Collector) output(o *pyjson.Object) error {
	var m message.Output
	if err := wire.BindReply(o, &m); err != nil {
		return err
	}
	if m.Error != nil {
		return m.Error
	}
	if m.Output != len(c.Files) {
		return fmt.Errorf("read reply: output %d does not follow %d outputs: %w", m.Output, len(c.Files), errGap)
	}
	if len(m.Data) != m.Ref.Bytes || message.Checksum(m.Data) != m.Ref.CRC32C {
		return fmt.Errorf("read reply: a file of node %s arrived damaged", m.Ref.Node)
	}
	f := message.File{Ref: m.Ref, Data: m.Data}
	if c.Files = append(c.Files, f); c.File != nil {
		c.File(f)
	}
	return nil
}

// complete returns an error if not all files arrived that the last message named.
func (c *Collector) complete() error {
	if !c.unasked && len(c.Files) < c.named {
		return fmt.Errorf("read reply: %d of %d files arrived: %w", len(c.Files), c.named, errGap)
	}
	return nil
}
