package jobs

import (
	"encoding/json"
	"slices"
	"testing"

	"patchbay/fault"
	"patchbay/ipc/message"
	"patchbay/tests/golden"
)

// TestEndEventsHaveComfyUIsFields checks that terminal events have the field names of a recorded server's.
func TestEndEventsHaveComfyUIsFields(t *testing.T) {
	t.Parallel()
	var file struct {
		Runs []struct {
			Events map[string][]struct {
				Type string
				Data map[string]json.RawMessage
			}
		}
	}
	if err := golden.JSON("server/runs.json", &file); err != nil {
		t.Fatal(err)
	}
	failed := fault.New(fault.Unsupported, "broken")
	failed.Node, failed.Class = "8", "KSampler"
	failed.Extra = map[string]any{
		"executed": []string{"7"}, "current_outputs": []string{"7", "8"},
		"current_inputs": map[string]any{"seed": []any{1}},
	}
	ends := map[string]map[string]any{}
	for state, fault := range map[message.State]*fault.Error{message.Failed: failed, message.Cancelled: Cancelled()} {
		end := terminalOf(message.Record{Job: "j", State: state, Error: fault})
		ends[end.Type] = end.Data
	}
	seen := map[string]bool{}
	for _, run := range file.Runs {
		for _, events := range run.Events {
			for _, e := range events {
				got := ends[e.Type]
				if got == nil {
					continue
				}
				seen[e.Type] = true
				for name := range e.Data {
					if _, ok := got[name]; !ok {
						t.Errorf("%s lacks %s", e.Type, name)
					}
				}
				if len(got) != len(e.Data) {
					t.Errorf("%s has %d fields, want %d", e.Type, len(got), len(e.Data))
				}
			}
		}
	}
	if len(seen) != len(ends) {
		t.Errorf("the record has only %v", seen)
	}
	if ran, _ := ends["execution_error"]["executed"].([]string); !slices.Equal(ran, []string{"7"}) {
		t.Errorf("executed is %v", ends["execution_error"]["executed"])
	}
}
