package classes

import (
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"

	"patchbay/fault"
	"patchbay/node/graph"
	"patchbay/node/picture"
	"patchbay/node/pyjson"
	"patchbay/node/value"
	"patchbay/parallel/request"
	"patchbay/tests/golden"
)

// TestNodesMatchRecorded compares single nodes with the outputs of ComfyUI 0.33.0 in tests/golden/nodes.json.
func TestNodesMatchRecorded(t *testing.T) {
	text, err := golden.Read("nodes.json")
	check(t, err)
	decoded, err := pyjson.Decode(text)
	check(t, err)
	given, outputs := map[string]any{}, []any(nil)
	cat := All(graph.Class{
		Name: "Given", Fresh: true, Inputs: []graph.Input{graph.Number("name", "STRING", "")}, Outputs: graph.Slots("*"),
		Run: func(c *graph.Call) ([]any, error) { return []any{given[c.Str("name")]}, nil },
	}, graph.Class{
		Name: "Kept", Output: true,
		Inputs: []graph.Input{graph.Grow("values", "value", 9, graph.Link("value", "*", ""))},
		Run:    func(c *graph.Call) ([]any, error) { _, outputs = c.Grown("values"); return nil, nil },
	})
	runner, err := graph.NewRunner(graph.Config{Catalogue: cat})
	check(t, err)
	defer runner.Close()
	for i, v := range decoded.(*pyjson.Object).At("cases").([]any) {
		c := v.(*pyjson.Object)
		class, want := c.At("class").(string), c.At("outputs")
		name, prompt, inputs := fmt.Sprintf("case %d, %s", i, class), pyjson.NewObject(), pyjson.NewObject()
		for _, key := range c.At("inputs").(*pyjson.Object).Keys() {
			v := c.At("inputs").(*pyjson.Object).At(key)
			if o, ok := v.(*pyjson.Object); ok && o.At("tensor") != nil {
				given[key] = tensorValue(o)
				prompt.Set("in "+key, pyjson.NewObject("class_type", "Given", "inputs", pyjson.NewObject("name", key)))
				v = []any{"in " + key, int64(0)}
			}
			inputs.Set(key, v)
		}
		prompt.Set("node", pyjson.NewObject("class_type", class, "inputs", inputs))
		links := pyjson.NewObject()
		for n := range cat.Class(class).Outputs {
			links.Set(fmt.Sprint("values.value", n), []any{"node", int64(n)})
		}
		prompt.Set("kept", pyjson.NewObject("class_type", "Kept", "inputs", links))
		w, failure := graph.ParseWorkflow(prompt)
		if failure != nil {
			t.Fatal(failure)
		}
		_, err := runner.Run(t.Context(), graph.Job{Workflow: w}, nil)
		if refused := new(fault.Error); want == nil {
			if !errors.As(err, &refused) || refused.Code != fault.BadInput {
				t.Errorf("%s %s: got %v, %v, want a refusal (%v)", name, pyjson.Dump(inputs), outputs, err, c.At("error"))
			}
			continue
		}
		if err != nil {
			t.Errorf("%s %s: %v", name, pyjson.Dump(inputs), err)
			continue
		}
		for n, v := range want.([]any) {
			if text := differs(outputs[n], v); text != "" {
				t.Errorf("%s %s: output %d: %s", name, pyjson.Dump(inputs), n, text)
			}
		}
	}
}

// tensorValue returns the latent, the image (four dimensions) or the mask that a record defines by its formula.
func tensorValue(o *pyjson.Object) any {
	var shape []int
	n := 1
	for _, s := range o.At("shape").([]any) {
		shape, n = append(shape, int(s.(int64))), n*int(s.(int64))
	}
	v := golden.Fill(o.At("tensor").(string), n, o.At("scale").(float64), o.At("offset").(float64))
	if o.At("latent") != nil {
		l, _ := request.LatentOf(shape, v)
		return &value.Latent{Samples: l}
	}
	if len(shape) == 3 {
		return &picture.Mask{B: shape[0], Y: shape[1], X: shape[2], Data: v}
	}
	return &picture.Image{B: shape[0], Y: shape[1], X: shape[2], C: shape[3], Data: v}
}

// differs describes how a value differs from the recorded one. "" means equal within 2e-6.
func differs(got, want any) string {
	o, tensor := want.(*pyjson.Object)
	if !tensor {
		if a, b := pyjson.Dump(got), pyjson.Dump(want); string(a) != string(b) {
			return fmt.Sprintf("got %s, want %s", a, b)
		}
		return ""
	}
	var data []float32
	var shape []any
	switch v := got.(type) {
	case *picture.Image:
		data, shape = v.Data, []any{v.B, v.Y, v.X, v.C}
	case *picture.Mask:
		data, shape = v.Data, []any{v.B, v.Y, v.X}
	case *value.Latent:
		data, shape = v.Samples.Data, []any{v.Samples.Shape()}
	}
	values := o.At("values").([]any)
	if a, b := strings.Trim(fmt.Sprint(shape), "[]"), strings.Trim(fmt.Sprint(o.At("shape")), "[]"); a != b ||
		len(data) < len(values) { // for large results only the first values are recorded
		return fmt.Sprintf("shape %s, want %s", a, b)
	}
	for i, v := range values {
		if w, _ := pyjson.Float(v); !(math.Abs(float64(data[i])-w) <= 2e-6) {
			return fmt.Sprintf("value %d is %v, want %v", i, data[i], w)
		}
	}
	return ""
}
