package jobs

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"patchbay/fault"
	"patchbay/ipc/register"
	"patchbay/ipc/wire"
	"patchbay/ipc/wire/wiretest"
	"patchbay/node/files"
	"patchbay/node/pyjson"
	"patchbay/tests/bubble"
)

// TestFoldersStayInTheLog checks that a client is told which files are missing and which daemons have looked, but only
// the operator, in the log, where the folders are.
func TestFoldersStayInTheLog(t *testing.T) {
	bubble.Run(t, func(t *testing.T) {
		dir := t.TempDir()
		var log bytes.Buffer
		e := jetstreamServer(t, false)
		daemon := func(name string, note func() register.Machine) *register.Register {
			m, err := register.Join(t.Context(), e.URL, wire.Access{}, e, register.Config{Name: name, Note: note}, nil)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(m.Close)
			return m.Register
		}
		daemon("b", func() register.Machine {
			return register.Machine{Machine: "far", Folders: []string{"/srv/secret/models"}, Files: []files.NeededFile{
				{Kind: "vae", Name: "other.safetensors", Bytes: 5, Hash: "x"},
			}}
		})
		machines := daemon("a", nil)
		for ctx := wiretest.Context(t); len(machines.Daemons()) == 0; time.Sleep(time.Millisecond) {
			if ctx.Err() != nil {
				t.Fatal("daemon a does not hear of daemon b")
			}
		}
		j := New(Config{
			Owner: "a", Machines: machines, Log: zerolog.New(&log),
			Resources: &Resources{Index: files.NewIndex(files.Roots{Models: []string{dir}, Input: dir + "/input"})},
		})
		bad, err := wire.Decode([]byte(`{"1":{"errors":[{"type":"value_not_in_list",
		"extra_info":{"received_value":"gone.safetensors"}}]}}`), wire.JSON, wire.DefaultLimits())
		if err != nil {
			t.Fatal(err)
		}
		refusal := fault.New(fault.BadWorkflow, "refused")
		refusal.NodeErrors = map[string]any{}
		for _, id := range bad.Keys() {
			v, _ := bad.Get(id)
			refusal.NodeErrors[id] = v.(*pyjson.Object)
		}
		details := fault.From(j.ExplainMissing(refusal)).Details
		for _, name := range []string{"gone.safetensors", "other.safetensors"} {
			e := j.admit([]files.NeededFile{{Kind: "vae", Name: name, Bytes: 7, Hash: "y"}})
			if e == nil {
				t.Fatalf("%s is taken", name)
			}
			details += e.Details
		}
		for _, want := range []string{"no daemon has gone.safetensors", "daemon b on far", "has other contents"} {
			if !strings.Contains(details, want) {
				t.Errorf("the client is not told %q", want)
			}
		}
		if strings.Contains(details, dir) || strings.Contains(details, "/srv") {
			t.Errorf("folders reach the client: %s", details)
		}
		if text := log.String(); !strings.Contains(text, dir) || !strings.Contains(text, "/srv/secret/models") {
			t.Errorf("the log does not say where files were looked for: %s", text)
		}
	})
}
