// Package workflow reads the workflows that a command line names, changes their inputs, and finds the examples.
package workflow

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"iter"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"

	"patchbay/cli/console"
	"patchbay/ipc/message"
	"patchbay/ipc/wire"
	"patchbay/node/editor"
	"patchbay/node/graph"
	"patchbay/node/picture"
	"patchbay/node/pyjson"
)

// maxFlowFile bounds the bytes of a workflow file.
const maxFlowFile = 64 << 20

// Read reads a workflow from a JSON file, from a picture that ComfyUI or this program saved, or from in for "-". JSON
// may be a graph in API format or in the editor's, the body of ComfyUI's POST /prompt, or our own envelope.
func Read(path string, in io.Reader) (*message.RunRequest, *graph.Workflow, error) {
	return read(path, in, func(o *pyjson.Object) *pyjson.Object { return o })
}

// ReadWhole is Read, but a graph in the editor's format may have nodes of classes that are unknown here: they are in
// the workflow, with their links and without the values of their widgets.
func ReadWhole(path string, in io.Reader) (*message.RunRequest, *graph.Workflow, error) {
	return read(path, in, described)
}

// read is Read; prepare gets the decoded JSON before it is parsed.
func read(path string, in io.Reader, prepare func(*pyjson.Object) *pyjson.Object,
) (*message.RunRequest, *graph.Workflow, error) {
	bad := func(err error) error { return console.BadInput(fmt.Errorf("%s: %w", path, err)) }
	data, err := readAll(path, in)
	if err != nil {
		return nil, nil, console.BadInput(err)
	}
	data = bytes.TrimPrefix(data, []byte("\xef\xbb\xbf")) // a byte order mark
	var extra *pyjson.Object
	if picture.HasTexts(data) {
		prompt, texts, err := picture.WorkflowFrom(data)
		if err != nil {
			return nil, nil, bad(err)
		}
		extra = pyjson.NewObject()
		for _, k := range slices.Sorted(maps.Keys(texts)) {
			extra.Set(k, texts[k])
		}
		data = prompt
	}
	if len(bytes.TrimSpace(data)) == 0 {
		return nil, nil, bad(errors.New("there is no workflow in it: it is empty"))
	}
	o, err := wire.Decode(data, wire.JSON, wire.DefaultLimits())
	if err != nil {
		return nil, nil, bad(fmt.Errorf("not a workflow: %w", err))
	}
	req, w, failure := message.ParseRun(prepare(o))
	if failure != nil {
		return nil, nil, bad(failure)
	}
	if req.ExtraPNG == nil && extra != nil && extra.Len() > 0 {
		req.ExtraPNG = extra
	}
	return req, w, nil
}

// described adds to a request for a graph in the editor's format a description of every class in it, with the widgets
// that are drawn as inputs: the widgets of a subgraph are counted by them. Those of classes that are known here win.
func described(o *pyjson.Object) *pyjson.Object {
	whole, drawn := pyjson.NewObject(), o
	for _, field := range []string{"workflow", "prompt"} {
		if inner, ok := o.At(field).(*pyjson.Object); ok && editor.Is(inner) {
			whole, drawn = o, inner
		}
	}
	if !editor.Is(drawn) {
		return o
	}
	if drawn == o {
		whole.Set("workflow", o)
	}
	info := pyjson.NewObject()
	for n := range drawnNodes(drawn) {
		class := n.Text("type")
		if !info.Has(class) {
			info.Set(class, pyjson.NewObject("input", pyjson.NewObject("required", pyjson.NewObject())))
		}
		ports, _ := n.At("inputs").([]any)
		for _, v := range ports {
			if p, ok := v.(*pyjson.Object); ok && p.In("widget") != nil {
				info.In(class).In("input").In("required").Set(p.In("widget").Text("name"), []any{
					p.Text("type"),
					pyjson.NewObject(),
				})
			}
		}
	}
	if given := whole.In("object_info"); given != nil {
		for _, class := range given.Keys() {
			info.Set(class, given.At(class))
		}
	}
	whole.Set("object_info", info)
	return whole
}

// drawnNodes yields the nodes of a graph in the editor's format, and those of its subgraphs.
func drawnNodes(o *pyjson.Object) iter.Seq[*pyjson.Object] {
	return func(yield func(*pyjson.Object) bool) {
		subgraphs, _ := o.In("definitions").At("subgraphs").([]any)
		for _, level := range append([]any{o}, subgraphs...) {
			c, _ := level.(*pyjson.Object)
			nodes, _ := c.At("nodes").([]any)
			for _, v := range nodes {
				if n, ok := v.(*pyjson.Object); ok && !yield(n) {
					return
				}
			}
		}
	}
}

func readAll(path string, in io.Reader) ([]byte, error) {
	if path != "-" {
		f, err := os.Open(path)
		if err != nil {
			return nil, err
		}
		defer console.CloseQuietly(f)
		in = f
	}
	data, err := io.ReadAll(io.LimitReader(in, maxFlowFile+1))
	if err != nil {
		return nil, err // which names the file
	}
	if len(data) > maxFlowFile {
		return nil, fmt.Errorf("read %s: more than %d MiB is no workflow", path, maxFlowFile>>20)
	}
	return data, nil
}

// SetInputs applies --set id.field=value: the value gets the type of the literal that it replaces. The id may hold
// dots, the field may not.
func SetInputs(w *graph.Workflow, sets []string) error {
	for _, s := range sets {
		if err := setInput(w, s); err != nil {
			return console.BadInput(fmt.Errorf("--set %s: %w", s, err))
		}
	}
	return nil
}

func setInput(w *graph.Workflow, set string) error {
	path, text, ok := strings.Cut(set, "=")
	dot := strings.LastIndexByte(path, '.')
	if !ok || dot < 1 || dot == len(path)-1 {
		return errors.New("want id.field=value, as in 3.seed=7")
	}
	id, field := path[:dot], path[dot+1:]
	old, found := w.Input(id, field)
	if !found {
		return missingInput(w, id, field)
	}
	value, err := typedLike(old, text)
	if err != nil {
		return fmt.Errorf("%s of node %s (%s) %w", field, id, w.Class(id), err)
	}
	return w.SetInput(id, field, value)
}

// missingInput returns an error that lists the nodes or inputs that do exist.
func missingInput(w *graph.Workflow, id, field string) error {
	if w.Class(id) == "" {
		var have []string
		for _, n := range w.IDs() {
			have = append(have, n+" ("+w.Class(n)+")")
		}
		return fmt.Errorf("the workflow has no node %s; it has %s", id, strings.Join(have, ", "))
	}
	var have []string
	if n, ok := w.Value()[id].(map[string]any); ok {
		in, _ := n["inputs"].(map[string]any)
		have = slices.Sorted(maps.Keys(in))
	}
	return fmt.Errorf("node %s (%s) has no input %s; it has %s", id, w.Class(id), field, strings.Join(have, ", "))
}

// typedLike parses text as the type of old. Seeds go up to 2^64-1.
func typedLike(old any, text string) (any, error) {
	switch old.(type) {
	case string:
		return text, nil
	case bool:
		b, err := strconv.ParseBool(text)
		if err != nil {
			return nil, fmt.Errorf("is true or false, not %q", text)
		}
		return b, nil
	case int64, uint64:
		if u, err := strconv.ParseUint(text, 10, 64); err == nil {
			return u, nil
		}
		i, err := strconv.ParseInt(text, 10, 64)
		if err != nil {
			return nil, fmt.Errorf("is an integer, not %q", text)
		}
		return i, nil
	case float64:
		f, err := strconv.ParseFloat(text, 64)
		if err != nil || f != f || f-f != 0 {
			return nil, fmt.Errorf("is a number, not %q", text)
		}
		return f, nil
	case []any:
		return nil, errors.New("is linked to another node and cannot be set")
	}
	return nil, errors.New("is no text, number or boolean and cannot be set")
}
