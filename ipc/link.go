package ipc

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"

	"patchbay/node/pyjson"
)

// Collector puts together the messages of one run or one status with outputs: events, files in pieces, previews.
type Collector struct {
	Event    func(Event)                 // every event, terminal one included; nil: ignored
	Preview  func(node string, p []byte) // nil: ignored
	Accepted func(Receipt)               // nil: ignored
	Files    []File
	partial  map[int]int // bytes that are still missing of a file
	hold     *hold       // shared memory that Files lie in; of run
}

// Run reads replies until the end and returns the terminal event; nil if there was none.
func (c *Collector) Run(ctx context.Context, r *Replies) (*Event, error) {
	end, err := c.run(ctx, r)
	for i := range c.Files {
		if c.hold.has(c.Files[i].Data) {
			c.Files[i].Data = bytes.Clone(c.Files[i].Data)
		}
	}
	c.hold.release()
	c.hold = nil
	return end, err
}

// run is Run that leaves files in shared memory.
func (c *Collector) run(ctx context.Context, r *Replies) (*Event, error) {
	var last *Event
	for {
		m, err := r.next(ctx)
		c.hold = c.hold.join(m.hold)
		o := m.fields
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
		if ev != nil && Terminal(ev.Type) {
			last = ev
		}
	}
}

// Add takes one message and returns it if it is an event.
func (c *Collector) Add(o *pyjson.Object) (*Event, error) {
	kind, _ := o.Get("type")
	switch kind {
	case replyHeartbeat, "record":
		return nil, nil
	case replyAccepted:
		var r Receipt
		if err := bindReply(o, &r); err != nil {
			return nil, err
		}
		if c.Accepted != nil {
			c.Accepted(r)
		}
		return nil, nil
	case replyPreview:
		var p previewMessage
		if err := bindReply(o, &p); err != nil {
			return nil, err
		}
		if c.Preview != nil {
			c.Preview(p.Node, p.Data)
		}
		return nil, nil
	case replyOutput:
		return nil, c.output(o)
	case replyChunk:
		return nil, c.chunk(o)
	}
	ev, err := eventOf(o)
	if err == nil && c.Event != nil {
		c.Event(*ev)
	}
	return ev, err
}

func bindReply(o *pyjson.Object, dst any) error {
	if err := Bind(o, dst); err != nil {
		return fmt.Errorf("read reply: %w", err)
	}
	return nil
}

// eventOf reads an event.
func eventOf(o *pyjson.Object) (*Event, error) {
	ev := &Event{}
	plain := without(without(without(o, "data"), "error"), "node_errors")
	if err := bindReply(plain, ev); err != nil {
		return nil, err
	}
	if v, _ := o.Get("data"); v != nil {
		d, ok := v.(*pyjson.Object)
		if !ok {
			return nil, fmt.Errorf("read reply: event data is %s", kindOf(v))
		}
		ev.Data = map[string]any{}
		for _, k := range d.Keys() {
			ev.Data[k], _ = d.Get(k)
		}
	}
	if v, _ := o.Get("error"); v != nil {
		ev.Error = errorFrom(v, o)
		ev.NodeErrors = ev.Error.NodeErrors
	}
	return ev, nil
}

func (c *Collector) output(o *pyjson.Object) error {
	var m outputMessage
	if err := bindReply(o, &m); err != nil {
		return err
	}
	if m.Error != nil {
		return m.Error
	}
	if m.Output != len(c.Files) || m.Ref.Bytes < 0 || m.Ref.Bytes > maxOutput {
		return fmt.Errorf("read reply: output %d of %d bytes does not follow %d outputs", m.Output, m.Ref.Bytes, len(c.Files))
	}
	f := File{Ref: m.Ref, Data: m.Data}
	if m.Chunks > 0 {
		if c.partial == nil {
			c.partial = map[int]int{}
		}
		c.partial[m.Output] = m.Ref.Bytes
		f.Data = nil
	} else if err := checkFile(f); err != nil {
		return err
	}
	c.Files = append(c.Files, f)
	return nil
}

// maxOutput bounds one file that a Collector takes.
const maxOutput = 4 << 30

func (c *Collector) chunk(o *pyjson.Object) error {
	var m chunkMessage
	if err := bindReply(o, &m); err != nil {
		return err
	}
	left, ok := c.partial[m.Output]
	if !ok || m.Offset != len(c.Files[m.Output].Data) || len(m.Data) == 0 || len(m.Data) > left {
		return fmt.Errorf("read reply: a piece of output %d at %d does not fit", m.Output, m.Offset)
	}
	f := &c.Files[m.Output]
	f.Data = append(f.Data, m.Data...)
	if c.partial[m.Output] = left - len(m.Data); c.partial[m.Output] > 0 {
		return nil
	}
	delete(c.partial, m.Output)
	return checkFile(*f)
}

func checkFile(f File) error {
	if len(f.Data) != f.Ref.Bytes || checksum(f.Data) != f.Ref.CRC32C {
		return fmt.Errorf("read reply: a file of node %s arrived damaged", f.Ref.Node)
	}
	return nil
}

func (c *Collector) complete() error {
	if len(c.partial) > 0 {
		return fmt.Errorf("read reply: %d files are incomplete", len(c.partial))
	}
	return nil
}

// outcomeOf makes the Outcome of a run in a worker from its events.
func outcomeOf(files []File, events []Event) *Outcome {
	out := &Outcome{Files: files, UI: map[string]map[string]any{}}
	for _, ev := range events {
		switch ev.Type {
		case EventMetrics:
			out.Metrics = ev.Data
		case EventExecuted:
			ui, _ := ev.Data["output"].(*pyjson.Object)
			if ui == nil {
				continue
			}
			rest := map[string]any{}
			for _, k := range ui.Keys() {
				if !slices.ContainsFunc(files, func(f File) bool { return f.Ref.Node == ev.Node && f.Ref.Kind == k }) {
					rest[k], _ = ui.Get(k)
				}
			}
			out.UI[ev.Node] = rest
		}
	}
	return out
}
