package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/vbauerster/mpb/v8"
	"github.com/vbauerster/mpb/v8/decor"

	"patchbay/ipc/message"
	"patchbay/ipc/wire"
	"patchbay/node/pyjson"
)

// shower shows a job to a person or a program: bars on a terminal, plain lines elsewhere, JSON lines on request.
type shower struct {
	out  io.Writer
	json bool
	bars *mpb.Progress // nil: no terminal
	bar  *mpb.Bar      // of the node that makes progress
	node string
	line string // last plain line of progress
	job  string
}

func newShower(out io.Writer, json bool) *shower {
	s := &shower{out: out, json: json}
	if !json && isTerminal(out) {
		s.bars = mpb.New(mpb.WithOutput(out), mpb.WithWidth(40))
	}
	return s
}

// print writes one JSON line.
func (s *shower) print(v any) {
	b, err := wire.Encode(v, wire.JSON)
	if err != nil {
		printf(s.out, "{\"type\":\"unprintable\",\"message\":%q}\n", err.Error())
		return
	}
	printf(s.out, "%s\n", b)
}

func (s *shower) say(format string, args ...any) {
	if s.json {
		return
	}
	if s.bars != nil {
		printf(s.bars, format+"\n", args...)
		return
	}
	printf(s.out, format+"\n", args...)
}

func (s *shower) accepted(r message.Receipt) {
	s.job = r.Job
	if s.json {
		s.print(r)
		return
	}
	s.say("job %s %s", r.Job, r.State)
	for id, e := range r.NodeErrors {
		s.say("node %s cannot run: %s", id, nodeErrorText(e))
	}
}

func (s *shower) event(ev message.Event) {
	if s.json {
		s.print(ev)
		return
	}
	switch ev.Type {
	case "executing":
		s.dropBar()
		s.say("node %v", ev.Data["node"])
	case message.EventRetrying:
		s.dropBar()
		s.say("retrying: %v", ev.Data["cause"])
	case message.EventProgress:
		s.progress(ev)
	}
	if message.Terminal(ev.Type) {
		s.dropBar()
	}
}

func (s *shower) progress(ev message.Event) {
	value, _ := ev.Data["value"].(int64)
	total, _ := ev.Data["max"].(int64)
	if s.bars == nil {
		if line := fmt.Sprintf("node %s step %d/%d", ev.Node, value, total); line != s.line {
			s.line = line
			s.say("%s", line)
		}
		return
	}
	if s.bar == nil || s.node != ev.Node {
		s.dropBar()
		s.node = ev.Node
		s.bar = s.bars.AddBar(total, mpb.PrependDecorators(decor.Name("node "+ev.Node+" "), decor.CountersNoUnit("%d/%d")),
			mpb.AppendDecorators(decor.AverageETA(decor.ET_STYLE_GO)))
	}
	s.bar.SetCurrent(value)
}

func (s *shower) dropBar() {
	if s.bar != nil {
		s.bar.Abort(false)
		s.bar = nil
	}
}

func (s *shower) close() {
	s.dropBar()
	if s.bars != nil {
		s.bars.Wait()
		s.bars = nil
	}
}

// finish saves the files, says how the job ended and returns the error whose exit code fits.
func (s *shower) finish(end *message.Event, err error, files []message.File, dir string) error {
	s.close()
	var refused *wire.Error
	switch {
	case errors.As(err, &refused):
		return s.refused(refused)
	case errors.Is(err, context.Canceled):
		return &exitError{exitCancelled, errInterrupted}
	case err != nil:
		return err
	case end == nil:
		return errors.New("the daemon went away before the job ended")
	}
	switch end.Type {
	case message.EventSuccess:
	case message.EventInterrupted:
		return &exitError{exitCancelled, errors.New("the job was cancelled")}
	default:
		code := exitFailed
		if end.Error != nil && end.Error.Code == wire.ErrPlanRefused {
			code = exitBadInput // only the worker knows which plans fit a model, but it says so before any work
		}
		if s.json {
			return &exitError{code, nil}
		}
		return &exitError{code, describeError(end.Error)}
	}
	if w, ok := end.Data["warning"].(string); ok {
		s.say("warning: %s", w)
	}
	if dir == "" {
		return nil
	}
	paths, err := saveFiles(files, dir)
	for _, p := range paths {
		if s.json {
			s.print(map[string]any{"type": "saved", "job": end.Job, "path": p})
		} else {
			s.say("%s", p)
		}
	}
	if err != nil {
		return &exitError{exitFailed, err}
	}
	return nil
}

func (s *shower) refused(e *wire.Error) error {
	if s.json {
		s.print(map[string]any{"type": "refused", "error": e, "node_errors": e.NodeErrors})
		return &exitError{codeFor(e), nil}
	}
	return &exitError{codeFor(e), describeError(e)}
}

// describeError is the text of an error with all that a person needs to act, one fault a line.
func describeError(e *wire.Error) error {
	if e == nil {
		return errors.New("the job failed and did not say why")
	}
	lines := []string{e.Error()}
	for _, id := range sortedKeys(e.NodeErrors) {
		lines = append(lines, fmt.Sprintf("  node %s: %s", id, nodeErrorText(e.NodeErrors[id])))
	}
	return errors.New(strings.Join(lines, "\n"))
}

// nodeErrorText makes a line of one entry of ComfyUI's node_errors.
func nodeErrorText(v any) string {
	o, ok := v.(*pyjson.Object)
	if !ok {
		return fmt.Sprint(v)
	}
	class, _ := o.Get("class_type")
	list, _ := o.Get("errors")
	errs, _ := list.([]any)
	var out []string
	for _, e := range errs {
		if eo, ok := e.(*pyjson.Object); ok {
			message, _ := eo.Get("message")
			details, _ := eo.Get("details")
			out = append(out, strings.TrimSuffix(fmt.Sprintf("%v: %v", message, details), ": "))
		}
	}
	line := fmt.Sprintf("%v: %s", class, strings.Join(out, "; "))
	if strings.Contains(line, "(list of length ") { // ComfyUI's text for long lists leaves the values out
		line += fmt.Sprintf(" (patchbay nodes %v lists them)", class)
	}
	return line
}
