package console

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/vbauerster/mpb/v8"
	"github.com/vbauerster/mpb/v8/decor"

	"patchbay/fault"
	"patchbay/ipc/message"
	"patchbay/node/graph"
	"patchbay/node/pyjson"
)

// Progress shows a job to a person or a program: bars on a terminal, plain lines elsewhere, JSON lines on request.
type Progress struct {
	out  io.Writer
	json bool
	bars *mpb.Progress // nil: not a terminal
	bar  *mpb.Bar      // of the node in progress
	node string
	line string // last plain line of progress
	job  string
	// node titles by id, from the workflow at hand or else from the job's first event
	titles map[string]string
	// jobs known to be ahead of this one while it is queued; -1: it is not
	ahead  int
	warned []string // warnings of nodes that were printed
	Kept   bool     // the daemon keeps the files: those that cannot be saved can be fetched again
}

// NewProgress returns a Progress that writes to out, as JSON lines if json is set.
func NewProgress(out io.Writer, json bool) *Progress {
	s := &Progress{out: out, json: json, ahead: -1}
	if !json && IsTerminal(out) {
		s.bars = mpb.New(mpb.WithOutput(out), mpb.WithWidth(40))
	}
	return s
}

// Say prints a line for people; in JSON mode it prints nothing.
func (s *Progress) Say(format string, args ...any) {
	if s.json {
		return
	}
	if s.bars != nil {
		Printf(s.bars, format+"\n", args...)
		return
	}
	Printf(s.out, format+"\n", args...)
}

// Note returns a function that prints remarks other than the job's events: to errs, or above the bars if there are
// any.
func (s *Progress) Note(errs io.Writer) func(format string, args ...any) {
	return func(format string, args ...any) {
		s.dropBar()
		to := errs
		if s.bars != nil {
			to = s.bars
		}
		Printf(to, "patchbay: "+format+"\n", args...)
	}
}

// Names takes the titles that events show for nodes from a workflow.
func (s *Progress) Names(w *graph.Workflow) { s.titles = message.Titles(w) }

// name returns the id of a node with its title or class.
func (s *Progress) name(id string) string {
	if title := s.titles[id]; title != "" {
		return id + " (" + title + ")"
	}
	return id
}

// Waits reports whether the job was queued and is not known to have started.
func (s *Progress) Waits() bool { return s.ahead >= 0 }

// Ahead shows how many jobs are ahead of a queued job, if that has changed.
func (s *Progress) Ahead(n int) {
	if s.Waits() && n != s.ahead {
		s.ahead = n
		s.Say("job %s %s, %d ahead", s.job, message.Queued, n)
	}
}

// Accepted shows that a job was accepted, and which of its nodes cannot run.
func (s *Progress) Accepted(r message.Receipt) {
	s.job = r.Job
	if s.json {
		PrintJSON(s.out, r)
		return
	}
	s.ahead = -1
	if r.Reused != "" {
		s.Say("job %s %s, from job %s", r.Job, r.State, r.Reused)
		return
	}
	suffix := ""
	if r.State == message.Queued {
		if s.ahead = r.Position; r.Position > 0 {
			suffix = fmt.Sprintf(", %d ahead", r.Position)
		}
	}
	s.Say("job %s %s%s", r.Job, r.State, suffix)
	for _, id := range slices.Sorted(maps.Keys(r.NodeErrors)) {
		s.Say("node %s cannot run: %s", s.name(id), nodeErrorText(r.NodeErrors[id]))
	}
}

// Event shows an event of the job.
func (s *Progress) Event(ev message.Event) {
	if s.json {
		PrintJSON(s.out, ev)
		return
	}
	if ev.Type != message.EventQueued {
		s.ahead = -1
	} else if titles, ok := ev.Data["titles"].(*pyjson.Object); ok && s.titles == nil {
		s.titles = map[string]string{}
		for _, id := range titles.Keys() {
			s.titles[id], _ = titles.At(id).(string)
		}
	}
	switch ev.Type {
	case message.EventExecuting:
		s.dropBar()
		if id, ok := ev.Data["node"].(string); ok {
			s.Say("node %s", s.name(id))
		}
	case message.EventRetrying:
		s.dropBar()
		s.Say("retrying: %v", ev.Data["cause"])
	case message.EventProgress:
		s.progress(ev)
	case message.EventMetrics:
		s.warn(ev.Data["warnings"])
	}
	if message.Terminal(ev.Type) {
		s.dropBar()
	}
}

// warn prints the warnings of the nodes, each once: the metrics of a job that was tried again repeat them.
func (s *Progress) warn(warnings any) {
	list, _ := warnings.([]any)
	for _, w := range list {
		text, ok := w.(string)
		if ok && !slices.Contains(s.warned, text) {
			s.warned = append(s.warned, text)
			s.Say("warning: %s", text)
		}
	}
}

func (s *Progress) progress(ev message.Event) {
	value, _ := ev.Data["value"].(int64)
	total, _ := ev.Data["max"].(int64)
	resumed, _ := ev.Data["resumed"].(bool)
	step := map[bool]string{false: "step", true: "resumed at step"}[resumed]
	if line := fmt.Sprintf("node %s %s %d/%d", s.name(ev.Node), step, value, total); line != s.line &&
		(s.bars == nil || resumed) {
		s.line = line
		s.Say("%s", line)
	}
	if s.bars == nil {
		return
	}
	if s.bar == nil || s.node != ev.Node {
		s.dropBar()
		s.node = ev.Node
		s.bar = s.bars.AddBar(total,
			mpb.PrependDecorators(decor.Name("node "+s.name(ev.Node)+" "), decor.CountersNoUnit("%d/%d")),
			mpb.AppendDecorators(decor.AverageETA(decor.ET_STYLE_GO)))
	}
	s.bar.SetCurrent(value)
}

func (s *Progress) dropBar() {
	if s.bar != nil {
		s.bar.Abort(false)
		s.bar = nil
	}
}

// Close stops the bars and waits for their output.
func (s *Progress) Close() {
	s.dropBar()
	if s.bars != nil {
		s.bars.Wait()
		s.bars = nil
	}
}

// Finish closes the bars, saves files below dir (none if that is ""), prints how the job ended, and returns an error
// with the fitting exit code, nil if the job succeeded.
func (s *Progress) Finish(end *message.Event, err error, files []message.File, dir string) error {
	s.Close()
	var refused *fault.Error
	switch {
	case errors.As(err, &refused):
		return s.refused(refused)
	case errors.Is(err, context.Canceled):
		return Exit(ExitCancelled, ErrInterrupted)
	case err != nil:
		return err
	case end == nil:
		return errors.New("the daemon went away before the job ended")
	}
	switch end.Type {
	case message.EventSuccess:
	case message.EventInterrupted:
		return Exit(ExitCancelled, errors.New("the job was cancelled"))
	default:
		code := ExitFailed
		if end.Error != nil && end.Error.Public() == fault.PlanRefused {
			code = ExitBadInput // only the worker knows which plans fit a model, but it says so before any work
		}
		if s.json {
			return Exit(code, nil)
		}
		return Exit(code, describeError(end.Error))
	}
	if w, ok := end.Data["warning"].(string); ok {
		s.Say("warning: %s", w)
	}
	if dir == "" {
		return nil
	}
	if err = s.Save(files, dir); err != nil && s.Kept {
		err = fmt.Errorf("%w; the job is done and its files are kept: `patchbay get %s --out FOLDER`", err, end.Job)
	}
	if err != nil {
		return Exit(ExitFailed, err)
	}
	return nil
}

// Save writes files of the job below dir, as SaveFiles does, and prints their paths.
func (s *Progress) Save(files []message.File, dir string) error {
	paths, err := SaveFiles(files, dir)
	for _, p := range paths {
		if s.json {
			PrintJSON(s.out, map[string]any{"type": "saved", "job": s.job, "path": p})
		} else {
			s.Say("%s", p)
		}
	}
	return err
}

func (s *Progress) refused(e *fault.Error) error {
	if s.json {
		PrintJSON(s.out, map[string]any{"type": "refused", "error": e, "node_errors": e.NodeErrors})
		return &ExitError{codeFor(e), nil}
	}
	return &ExitError{codeFor(e), describeError(e)}
}

// describeError returns the text of an error with all that a person needs to act on it, one fault per line.
func describeError(e *fault.Error) error {
	if e == nil {
		return errors.New("the job failed and did not say why")
	}
	text := Describe(e.Line(), "", e.NodeErrors)
	if all, ok := e.Extra["unknown_classes"].(*pyjson.Object); ok {
		for _, class := range all.Keys() {
			text += fmt.Sprintf("\n  not here: %s (node %s)", class, strings.Trim(fmt.Sprint(all.At(class)), "[]"))
		}
	}
	return errors.New(text)
}

// Describe returns a message with the entries of ComfyUI's node_errors below it or, if there are none, its details.
func Describe(message, details string, nodeErrors map[string]any) string {
	lines := []string{message}
	for _, id := range slices.Sorted(maps.Keys(nodeErrors)) {
		lines = append(lines, fmt.Sprintf("  node %s: %s", id, nodeErrorText(nodeErrors[id])))
	}
	if len(lines) == 1 && details != "" {
		lines[0] += ": " + details
	}
	return strings.Join(lines, "\n")
}

// nodeErrorText renders one entry of ComfyUI's node_errors as a line.
func nodeErrorText(v any) string {
	o, ok := v.(*pyjson.Object)
	if !ok {
		return fmt.Sprint(v)
	}
	class := o.At("class_type")
	errs, _ := o.At("errors").([]any)
	var out []string
	for _, e := range errs {
		if eo, ok := e.(*pyjson.Object); ok {
			out = append(out, strings.TrimSuffix(fmt.Sprintf("%v: %v", eo.At("message"), eo.At("details")), ": "))
		}
	}
	line := fmt.Sprintf("%v: %s", class, strings.Join(out, "; "))
	if strings.Contains(line, "(list of length ") { // ComfyUI's text for long lists leaves the values out
		line += fmt.Sprintf(" (patchbay nodes %v lists them)", class)
	}
	return line
}

// SaveFiles writes the pictures of a job below dir and returns their paths. Previews of PreviewImage are left out
// unless there is nothing else.
func SaveFiles(files []message.File, dir string) ([]string, error) {
	var paths []string
	temp := func(f message.File) bool { return f.Ref.Type == "temp" }
	more := slices.ContainsFunc(files, func(f message.File) bool { return !temp(f) })
	for _, f := range files {
		if temp(f) && more {
			continue
		}
		name, err := f.Save(dir)
		if err != nil {
			return paths, err
		}
		paths = append(paths, filepath.Join(dir, filepath.FromSlash(name)))
	}
	return paths, nil
}

// Nearest returns dir, or the nearest existing folder above it.
func Nearest(dir string) string {
	for {
		if _, err := os.Stat(dir); err == nil || dir == filepath.Dir(dir) {
			return dir
		}
		dir = filepath.Dir(dir)
	}
}

// Bar shows on a terminal how many of total bytes (-1: not known) of a file there are. grown is called with their
// number, end when there are no more to come.
func Bar(out io.Writer, name string, total int64) (grown func(int64), end func()) {
	if !IsTerminal(out) {
		return func(int64) {}, func() {}
	}
	bars := mpb.New(mpb.WithOutput(out), mpb.WithWidth(40))
	bar := bars.AddBar(max(total, 0), mpb.PrependDecorators(decor.Name(name+" "), decor.CountersKibiByte("% .1f / % .1f")),
		mpb.AppendDecorators(decor.AverageETA(decor.ET_STYLE_GO)))
	return bar.SetCurrent, func() { bar.Abort(false); bars.Wait() }
}

// CheckFolder returns an error if files cannot be written into a folder, which need not exist yet.
func CheckFolder(dir string) error {
	f, err := os.CreateTemp(Nearest(dir), ".patchbay-")
	if err != nil {
		return fmt.Errorf("%s cannot be written: %w", dir, err)
	}
	return errors.Join(f.Close(), os.Remove(f.Name()))
}
