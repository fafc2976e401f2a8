package editor_test

import (
	"os"
	"slices"
	"testing"

	"patchbay/node/picture"
	"patchbay/node/pyjson"
)

// texts returns the prompt and the workflow of an image, nil if it has none.
func texts(t *testing.T, path string) (prompt, workflow *pyjson.Object) {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	text, extra, err := picture.WorkflowFrom(data)
	if err != nil {
		return nil, nil
	}
	prompt = decoded(t, string(text))
	workflow, _ = extra["workflow"].(*pyjson.Object)
	return prompt, workflow
}

// bare returns a prompt with sorted keys, without titles, without inputs that recorded lacks and without the value of
// the upload button, which editors of 2023 included.
func bare(prompt, recorded *pyjson.Object) string {
	out := pyjson.NewObject()
	for _, id := range slices.Sorted(slices.Values(prompt.Keys())) {
		n := prompt.At(id).(*pyjson.Object)
		given, inputs := n.At("inputs").(*pyjson.Object), pyjson.NewObject()
		for _, name := range slices.Sorted(slices.Values(given.Keys())) {
			v := given.At(name)
			if f, ok := v.(float64); ok && f == float64(int64(f)) {
				v = int64(f)
			}
			if recorded.In(id).In("inputs").Has(name) && name != "upload" && name != "choose file to upload" {
				inputs.Set(name, v)
			}
		}
		out.Set(id, pyjson.NewObject("class", n.At("class_type"), "inputs", inputs))
	}
	return string(pyjson.Dump(out))
}
