package clients

import (
	"encoding/json"
	"os"
	"os/exec"
	"strings"
	"testing"

	"patchbay/tests/harness"
)

// TestNATSCommand checks what a person types with the nats command.
func TestNATSCommand(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("long: builds the nats command")
	}
	nats := harness.NATSCommand(t)
	s := harness.Start(t, harness.Build(t), "")
	s.Until("the worker is up", func() bool { return len(s.WorkerPIDs()) == 1 })
	var out string // stdout of the last command; do returns stderr with it
	do := func(stdin string, args ...string) string {
		t.Helper()
		cmd := exec.Command(nats, append([]string{"--server", s.URL}, args...)...)
		cmd.Env = append(os.Environ(), "XDG_CONFIG_HOME="+t.TempDir())
		if stdin != "" {
			cmd.Stdin = strings.NewReader(stdin)
		}
		errs := &harness.Output{}
		cmd.Stderr = errs
		b, err := harness.Printed(cmd)
		if err != nil {
			t.Errorf("nats %v: %v\n%s%s", args, err, b, errs)
		}
		out = string(b)
		return out + errs.String()
	}
	says := func(what, got string, wants ...string) {
		t.Helper()
		for _, want := range wants {
			if !strings.Contains(got, want) {
				t.Errorf("%s: got\n%s\nwant %q in it", what, got, want)
			}
		}
	}
	says("service ls", do("", "service", "ls"), "patchbay", "0.0.0-dev")
	says("service info", do("", "service", "info", "patchbay"), "patchbay.v1.run", "patchbay.v1.status.*",
		"patchbay.v1.submit", "worker_pids", "comfy_compat")
	says("service ping", do("", "service", "ping", "patchbay"), "patchbay")

	do(harness.Quick, "req", "patchbay.v1.submit", "--force-stdin", "--no-templates", "--raw")
	var r struct{ Job, State string }
	if err := json.Unmarshal([]byte(out), &r); err != nil || r.Job == "" || r.State != "queued" {
		t.Fatalf("receipt %q: %v", out, err)
	}
	s.WaitState(s.Client(), r.Job, "done")
	says("status", do("", "req", "patchbay.v1.status."+r.Job, "", "--raw"), `"state":"done"`, `quick_00001_.latent`)
	says("cancel", do("", "req", "patchbay.v1.cancel."+r.Job, "", "--raw"), `"cancelled":false`)

	// Without the empty message at the end do would kill it.
	says("run", do("", "req", "patchbay.v1.run", harness.Quick, "--raw", "--wait-for-empty", "--no-templates",
		"--reply-timeout",
		"30s"), `"accepted"`, `"execution_start"`, `"output"`, `"execution_success"`)
	says("an empty pipe", do("", "req", "patchbay.v1.run", "", "--raw"), "empty_body", "--force-stdin")
	says("a bad workflow", do("", "req", "patchbay.v1.submit", `{"1":{"class_type":"Nope","inputs":{}}}`), "Nope",
		"422", "bad_workflow")
	says("an unknown job", do("", "req", "patchbay.v1.status.nothere", ""), "404", "no_such_job")
	says("by endpoint name", do(harness.Quick, "service", "request", "patchbay", "submit", "--force-stdin",
		"--raw"), `"accepted"`)
	says("describe", do("", "req", "patchbay.v1.describe", `{"class":"KSampler"}`, "--raw"), "sampler_name", "euler")
}
