package tests

import (
	"fmt"
	"testing"

	"patchbay/ipc/client"
	"patchbay/ipc/message"
	"patchbay/ipc/traces/tracestest"
	"patchbay/ipc/wire/wiretest"
	"patchbay/tests/harness"
)

// TestTraces runs a picture in the real program, which has its collector and the credentials for it from
// OpenTelemetry's variables, and kills a daemon that has another: both traces continue those of their clients. The
// harness fails the test if a program shows the credentials.
func TestTraces(t *testing.T) {
	t.Parallel()
	secret := harness.Secret(t, "traces-s3cret-0f-4lice")
	c := tracestest.New(t)
	s := harness.Start(t, harness.Build(t), fmt.Sprintf("OTEL_EXPORTER_OTLP_ENDPOINT=%s OTEL_BSP_SCHEDULE_DELAY=1 "+
		`OTEL_EXPORTER_OTLP_HEADERS=api-key=%s exec "$@"`, c.URL, secret))
	conn := s.Client()
	const steps, trace, parent = 3, "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
	req := &message.RunRequest{
		ID: "drawn", Workflow: harness.DemoFlow(t, steps), TraceParent: "00-" + trace + "-" + parent + "-01",
	}
	end, err := client.Run(wiretest.Context(t), conn, req, &client.Collector{})
	if err != nil || end.Type != message.EventSuccess {
		t.Fatalf("%+v, %v", end, err)
	}
	job, all := c.Job("drawn")
	if job.Trace != trace || job.Parent != parent || job.Header.Get("api-key") != secret ||
		job.Attributes["patchbay.state"] != "done" {
		t.Errorf("the job's span is %+v", job)
	}
	byID, count := map[string]*tracestest.Span{}, map[string]int{}
	for _, one := range all {
		byID[one.ID] = one
	}
	for _, one := range all {
		in := byID[one.Parent]
		switch {
		case one != job && in == nil:
			t.Errorf("%s has no parent among the spans", one.Name)
		case in != nil && (one.Start.Before(in.Start) || one.End.After(in.End)):
			t.Errorf("%s is from %s to %s, outside %s, from %s to %s", one.Name, one.Start, one.End, in.Name, in.Start, in.End)
		}
		if class := one.Attributes["patchbay.class"]; class != "" {
			count[class+" "+one.Attributes["patchbay.phase"]]++
		} else if in != nil {
			count[in.Attributes["patchbay.class"]+"/"+one.Name]++
		}
	}
	for name, want := range map[string]int{
		"KSampler denoise": 1, "KSampler/step": steps, "KSampler/loading": 1, "VAEDecode vae": 1, "CLIPTextEncode text": 2,
		"SaveImage other": 1, "/queued": 1, "/attempt": 1, "/saving": 1, "/received": 1,
	} {
		if count[name] != want {
			t.Errorf("there are %d spans %s, want %d; all: %v", count[name], name, want, count)
		}
	}
	req.ID, req.Workflow = "kept", harness.DemoFlow(t, 3000) // it does not end before the daemon does
	if _, err := client.Submit(wiretest.Context(t), conn, req); err != nil {
		t.Fatal(err)
	}
	s.Kill()
	s.Launch()
	harness.Cancel(t, s.Client(), "kept")
	if job, _ := c.Job("kept"); job.Trace != trace || job.Parent != parent ||
		job.Attributes["patchbay.state"] != "cancelled" {
		t.Errorf("the span of the job whose daemon was killed is %+v", job)
	}
}
