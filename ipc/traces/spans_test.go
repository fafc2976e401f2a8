package traces

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"patchbay/fault"
	"patchbay/ipc/message"
)

// zero is the time that times in this test count from, in Unix milliseconds.
const zero = 1_000_000_000_000

// told makes a log of lines "MS ATTEMPT TYPE [NODE or STEP]".
func told(lines ...string) (log []message.Event) {
	for i, line := range lines {
		f := strings.Fields(line)
		ev := message.Event{Type: f[2], Seq: uint64(i + 1), Data: map[string]any{}}
		_, _ = fmt.Sscan(f[0], &ev.TS)
		_, _ = fmt.Sscan(f[1], &ev.Attempt)
		ev.TS += zero
		switch {
		case ev.Type == message.EventQueued:
			ev.Data["titles"] = map[string]string{"3": "KSampler"}
		case ev.Type == message.EventProgress:
			n := int64(0)
			_, _ = fmt.Sscan(f[3], &n)
			ev.Data["value"], ev.Data["max"] = n, int64(9)
			if len(f) > 4 {
				ev.Data["resumed"] = true
			}
		case ev.Type == message.EventRetrying:
			ev.Error = &fault.Error{Code: fault.WorkerLost, Node: "3"}
		case len(f) > 3:
			ev.Node = f[3]
		}
		log = append(log, ev)
	}
	return log
}

// drawn writes a span and its parts as lines "name start end code key=value", times in milliseconds after zero.
func drawn(s *span, depth int, out *strings.Builder) {
	ms := func(t time.Time) float64 { return float64(t.Sub(time.UnixMilli(zero)).Microseconds()) / 1000 }
	fmt.Fprintf(out, "%s%s %g %g", strings.Repeat("  ", depth), s.name, ms(s.start), ms(s.end))
	if s.code != "" {
		fmt.Fprintf(out, " %s", s.code)
	}
	for _, a := range s.attributes {
		fmt.Fprintf(out, " %s=%s", strings.TrimPrefix(string(a.Key), "patchbay."), a.Value.String())
	}
	out.WriteByte('\n')
	for _, p := range s.parts {
		drawn(p, depth+1, out)
	}
}

// TestSpans makes spans of jobs that end in every way, from logs with known times.
func TestSpans(t *testing.T) {
	at := func(ms int64) int64 { return zero + ms }
	cancelled := &fault.Error{Code: fault.Cancelled, Node: "3"}
	failed := &fault.Error{Code: fault.OutOfMemory, Node: "3"}
	one := []message.OutputRef{{Node: "9"}}
	metrics := map[string]any{"nodes": []any{
		map[string]any{"node": "4", "class": "CLIPTextEncode", "phase": "text", "seconds": 0.5, "load_seconds": 0.25},
		map[string]any{"node": "3", "class": "KSampler", "phase": "denoise", "seconds": 2.0, "load_seconds": 1.0},
		map[string]any{"node": "9", "class": "SaveImage", "phase": "other", "seconds": 0.1},
	}}
	for _, row := range []struct {
		name string
		rec  message.Record
		log  []message.Event
		want string
	}{
		{
			"done",
			message.Record{
				Job: "a", State: message.Done, Attempt: 1, Worker: "worker-0", Created: at(0), Started: at(100),
				Finished: at(2900), Outputs: one, Metrics: metrics, Model: "dev.safetensors", Plan: "ulysses=2",
			},
			told("5 0 queued", "110 1 execution_start", "120 1 executing 4", "620 1 executing 3", "2120 1 progress 1",
				"2620 1 progress 2", "2700 1 executing 9", "2950 1 executed 9", "2900 1 executing", "2900 1 execution_success"),
			`job 0 2950 job=a state=done attempts=1 files=1 model=dev.safetensors plan=ulysses=2
  received 0 5
  queued 5 100
  attempt 100 2950 attempt=1 worker=worker-0
    node 4 120 620 node=4 class=CLIPTextEncode phase=text
      loading 120 370
    KSampler 620 2620 node=3 class=KSampler phase=denoise
      loading 620 1620
      step 1620 2120 step=1
      step 2120 2620 step=2
    node 9 2700 2800 node=9 class=SaveImage phase=other
    saving 2800 2950
`,
		},
		{
			"a node loads longer than it seems to run",
			message.Record{
				Job: "a", State: message.Done, Attempt: 1, Worker: "worker-0", Created: at(0), Started: at(100),
				Finished: at(900), Metrics: map[string]any{"nodes": []any{map[string]any{
					"node": "4", "class": "VAELoader", "phase": "load", "seconds": 0.0025, "load_seconds": 0.0025,
				}}},
			},
			told("5 0 queued", "110 1 execution_start", "120 1 executing 4", "122 1 executing 3", "900 1 execution_success"),
			`job 0 900 job=a state=done attempts=1 files=0
  received 0 5
  queued 5 100
  attempt 100 900 attempt=1 worker=worker-0
    node 4 120 122 node=4 class=VAELoader phase=load
      loading 120 122
    KSampler 122 900 node=3
`,
		},
		{
			"cancelled in a step",
			message.Record{
				Job: "a", State: message.Cancelled, Attempt: 1, Worker: "worker-0", Created: at(0), Started: at(100),
				Finished: at(900), Error: cancelled,
			},
			told("5 0 queued", "110 1 execution_start", "120 1 executing 3", "620 1 progress 1", "900 1 executing",
				"900 1 execution_interrupted"),
			`job 0 900 job=a state=cancelled attempts=1 files=0
  received 0 5
  queued 5 100
  attempt 100 900 attempt=1 worker=worker-0
    KSampler 120 900 node=3
      step 120 620 step=1
`,
		},
		{
			"cancelled, and its daemon could say no more",
			message.Record{
				Job: "a", State: message.Cancelled, Attempt: 1, Worker: "worker-0", Created: at(0), Started: at(100),
				Finished: at(900), Error: cancelled,
			},
			told("5 0 queued", "110 1 execution_start", "120 1 executing 3", "900 1 execution_interrupted"),
			`job 0 900 job=a state=cancelled attempts=1 files=0
  received 0 5
  queued 5 100
  attempt 100 900 attempt=1 worker=worker-0
    KSampler 120 900 node=3
`,
		},
		{
			"cancelled while it waited",
			message.Record{
				Job: "a", State: message.Cancelled, Created: at(0), Finished: at(900), Error: cancelled,
			},
			told("5 0 queued", "900 0 execution_interrupted"),
			`job 0 900 job=a state=cancelled attempts=0 files=0
  received 0 5
  queued 5 900
`,
		},
		{
			"failed",
			message.Record{
				Job: "a", State: message.Failed, Attempt: 1, Worker: "worker-0", Created: at(0), Started: at(100),
				Finished: at(900), Error: failed, Outputs: one,
			},
			told("5 0 queued", "110 1 execution_start", "120 1 executing 9", "220 1 executing 3", "950 1 executed 9",
				"900 1 executing", "900 1 execution_error"),
			`job 0 950 out_of_memory job=a state=failed attempts=1 files=1
  received 0 5
  queued 5 100
  attempt 100 950 out_of_memory attempt=1 worker=worker-0
    node 9 120 220 node=9
    KSampler 220 900 out_of_memory node=3
    saving 900 950
`,
		},
		{
			"a worker died, the next goes on, and resumes two steps",
			message.Record{
				Job: "a", State: message.Done, Attempt: 2, Worker: "worker-1", Created: at(0), Started: at(1000),
				Finished: at(2000),
			},
			told("5 0 queued", "110 1 execution_start", "120 1 executing 3", "620 1 progress 1", "700 1 progress 2",
				"800 1 retrying", "1010 2 execution_start", "1020 2 executing 3", "1030 2 progress 2 resumed", "1530 2 progress 3",
				"2000 2 executing", "2000 2 execution_success"),
			`job 0 2000 job=a state=done attempts=2 files=0
  received 0 5
  queued 5 110
  attempt 110 800 worker_lost attempt=1
    KSampler 120 800 worker_lost node=3
      step 120 620 step=1
      step 620 700 step=2
  queued 800 1000
  attempt 1000 2000 attempt=2 worker=worker-1
    KSampler 1020 2000 node=3
      step 1030 1530 step=3
`,
		},
		{
			"a worker died before it said anything, for the last time",
			message.Record{
				Job: "a", State: message.Failed, Attempt: 1, Worker: "worker-0", Created: at(0), Started: at(100),
				Finished: at(900), Error: &fault.Error{Code: fault.WorkerLost},
			},
			told("5 0 queued", "900 1 executing", "900 1 execution_error"),
			`job 0 900 worker_lost job=a state=failed attempts=1 files=0
  received 0 5
  queued 5 100
  attempt 100 900 worker_lost attempt=1 worker=worker-0
`,
		},
		{
			"retried by hand",
			message.Record{
				Job: "a", State: message.Done, Attempt: 2, Worker: "worker-0", Created: at(0), Started: at(5100),
				Finished: at(6000),
			},
			told("5 0 queued", "110 1 execution_start", "120 1 executing 3", "900 1 execution_error", "5000 1 retrying",
				"5110 2 execution_start", "5120 2 executing 3", "6000 2 execution_success"),
			`job 5000 6000 job=a state=done attempts=2 files=0
  queued 5000 5100
  attempt 5100 6000 attempt=2 worker=worker-0
    KSampler 5120 6000 node=3
`,
		},
		{
			"a node waits for lazy inputs, steps were dropped from the log, and a clock was set back",
			message.Record{
				Job: "a", State: message.Done, Attempt: 1, Worker: "worker-0", Created: at(0), Started: at(100),
				Finished: at(3000), Metrics: metrics,
			},
			told("5 0 queued", "110 1 execution_start", "200 1 executing 9", "210 1 executing 3", "1500 1 progress 7",
				"1400 1 progress 8", "1600 1 progress 9", "2300 1 executing 9", "3000 1 execution_success"),
			`job 0 3000 job=a state=done attempts=1 files=0
  received 0 5
  queued 5 100
  attempt 100 3000 attempt=1 worker=worker-0
    node 9 200 210 node=9
    KSampler 210 2210 node=3 class=KSampler phase=denoise
      loading 210 1210
      step 1500 1500 step=8
      step 1500 1600 step=9
    node 9 2300 2400 node=9 class=SaveImage phase=other
`,
		},
		{
			"a run of the verb sample",
			message.Record{
				Job: "a", Kind: "sample", State: message.Done, Attempt: 1, Worker: "worker-0", Created: at(0), Started: at(0),
				Finished: at(900), Metrics: map[string]any{"load_seconds": 0.2},
			},
			told("0 1 queued", "0 1 execution_start", "500 1 progress 1", "900 1 progress 2", "900 1 execution_success"),
			`job 0 900 job=a state=done attempts=1 files=0 kind=sample
  received 0 0
  queued 0 0
  attempt 0 900 attempt=1 worker=worker-0
    loading 0 200
    step 200 500 step=1
    step 500 900 step=2
`,
		},
		{
			"its files are those of another job",
			message.Record{
				Job: "a", State: message.Done, Reused: "b", Created: at(0), Started: at(0), Finished: at(3), Outputs: one,
			},
			told("2 0 queued", "3 0 executed 9", "3 0 execution_success"),
			`job 0 3 job=a state=done attempts=0 files=1 reused=b
  received 0 2
`,
		},
		{
			"of its log only the end is left",
			message.Record{
				Job: "a", State: message.Expired, Created: at(0), Finished: at(9), Error: &fault.Error{Code: fault.Expired},
			},
			told("9 0 expired"),
			"job 0 9 expired job=a state=expired attempts=0 files=0\n",
		},
	} {
		t.Run(row.name, func(t *testing.T) {
			var out strings.Builder
			drawn(spansOf(&row.rec, row.log), 0, &out)
			if out.String() != row.want {
				t.Errorf("the spans are\n%swant\n%s", out.String(), row.want)
			}
		})
	}
}
