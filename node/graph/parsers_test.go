package graph_test

import (
	"bytes"
	"fmt"
	"strings"
	"testing"

	"patchbay/node/classes"
	"patchbay/node/files"
	"patchbay/node/graph"
	"patchbay/node/pyjson"
	"patchbay/tests/hammer"
)

// TestParsersUnderTheHammer runs the parser of workflows on mutated inputs: 20,000, or 10,000,000 in `make soak`. The
// fuzz target of the same name has the same body.
func TestParsersUnderTheHammer(t *testing.T) {
	t.Run("Workflow", func(t *testing.T) { workflowTarget().Run(t, hammer.Runs) })
}

// workflowTarget checks that a parsed workflow is the same after writing and parsing it, and that validation does not
// panic.
func workflowTarget() *hammer.Target[*graph.Workflow] {
	cat := classes.All()
	t := &hammer.Target[*graph.Workflow]{
		Name: "FuzzWorkflowJSON",
		Parse: func(in hammer.Input) (*graph.Workflow, error) {
			w, failure := graph.ParseWorkflowJSON(in.Data)
			if failure != nil {
				return nil, failure
			}
			return w, nil
		},
		Check: func(_ hammer.Input, w *graph.Workflow, refused error) error {
			if refused != nil {
				return nil
			}
			first := w.JSON()
			again, failure := graph.ParseWorkflowJSON(first)
			if failure != nil {
				return fmt.Errorf("what was written cannot be read: %w\n%s", failure, first)
			}
			if second := again.JSON(); !bytes.Equal(first, second) {
				return fmt.Errorf("not stable:\n%s\n%s", first, second)
			}
			outputs, failure := graph.Validate(cat, files.Roots{}, graph.Job{Workflow: w})
			if len(outputs) == 0 && failure == nil {
				return fmt.Errorf("no outputs and no failure")
			}
			if failure != nil {
				_ = pyjson.Dump(failure.NodeErrors)
			}
			return nil
		},
		// Four times the text plus 800 bytes for each of its values, because it is decoded and then copied.
		Bound: func(in hammer.Input) int64 {
			n := int64(0)
			for _, c := range in.Data {
				if strings.IndexByte(",:[{", c) >= 0 {
					n++
				}
			}
			return 8<<10 + 4*int64(len(in.Data)) + 800*n
		},
	}
	for _, s := range []string{
		`{"1": {"class_type": "KSampler", "inputs": {"seed": 18446744073709551615, "model": ["2", 0], "cfg": NaN}}}`,
		`{"a": {"class_type": "SaveImage", "inputs": {"images": ["a", 0], "filename_prefix": "\ud83e"}}}`,
		`{"a": {"class_type": "EmptyLatentImage", "inputs": {"width": {"__value__": [1]}, "height": "1_2", "batch_size": ` +
			`1e400}}, "b": {"class_type": "PreviewImage", "inputs": {"images": ["a", -1]}}}`,
		`{"1":{"class_type":"CheckpointLoaderSimple","inputs":{"ckpt_name":"m"}},"2":{"class_type":"CLIPTextEncode",` +
			`"inputs":{"clip":["1",1],"text":"x"},"_meta":{"title":"T"}},` +
			`"3":{"class_type":"SaveImage","inputs":{"images":["4",0],"filename_prefix":"p"}},"4":{"class_type":"VAEDecode",` +
			`"inputs":{"samples":["2",0],"vae":["1",2]}}}`,
	} {
		t.Seeds = append(t.Seeds, hammer.Input{Data: []byte(s)})
	}
	return t
}
