package tests

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"patchbay/ipc/client"
	"patchbay/ipc/message"
	"patchbay/tests/harness"
)

// BenchmarkStart measures the time from sending a job to an idle daemon until the worker's execution_start arrives on
// NATS, and what the job costs the daemon. go test ./tests -run '^$' -bench Start -benchtime 200x
func BenchmarkStart(b *testing.B) {
	program := harness.Build(b)
	for _, mode := range []string{"interval", "always"} {
		b.Run("sync="+mode, func(b *testing.B) {
			s := harness.Start(b, program, "", "--sync", mode, "--log", "error", "--keep-jobs", "100")
			c := s.Client()
			nc, err := nats.Connect(s.URL)
			if err != nil {
				b.Fatal(err)
			}
			defer nc.Close()
			heard := make(chan string, 1024)
			if _, err := nc.Subscribe(message.EventSubject("*", message.EventStart),
				func(m *nats.Msg) { heard <- m.Subject }); err != nil {
				b.Fatal(err)
			}
			if err := nc.Flush(); err != nil {
				b.Fatal(err)
			}
			start := func(i int) time.Duration {
				id := fmt.Sprint("s", i)
				began := time.Now()
				if _, err := client.Submit(context.Background(), c, &message.RunRequest{
					ID:       id,
					Workflow: harness.Quick,
				}); err != nil {
					b.Fatal(err)
				}
				for subject := range heard {
					if subject == message.EventSubject(id, message.EventStart) {
						break
					}
				}
				took := time.Since(began)
				s.WaitState(c, id, message.Done) // the next one finds the daemon idle
				return took
			}
			start(-1) // once the worker is up
			var took []time.Duration
			before := harness.Census(s.Cmd.Process.Pid).CPU
			for i := 0; b.Loop(); i++ {
				took = append(took, start(i))
			}
			cpu := harness.Census(s.Cmd.Process.Pid).CPU - before
			b.ReportMetric(float64(cpu.Microseconds())/1000/float64(len(took)), "daemon-cpu-ms")
			slices.Sort(took)
			b.ReportMetric(float64(took[len(took)/2].Microseconds())/1000, "p50-ms")
			b.ReportMetric(float64(took[len(took)*99/100].Microseconds())/1000, "p99-ms")
		})
	}
}

// BenchmarkPicture measures a job that saves one picture of 1024 x 1024 whose pixels the worker has: PNG, file, and the
// file back to the client.
func BenchmarkPicture(b *testing.B) {
	program := harness.Build(b)
	input := filepath.Join(b.TempDir(), "input")
	if err := os.MkdirAll(input, 0o755); err != nil {
		b.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(input, "photo.png"), harness.Photo(1024), 0o644); err != nil {
		b.Fatal(err)
	}
	s := harness.Start(b, program, "", "--input", input, "--log", "error")
	c := s.Client()
	const flow = `{"1":{"class_type":"LoadImage","inputs":{"image":"photo.png"}},` +
		`"2":{"class_type":"SaveImage","inputs":{"images":["1",0],"filename_prefix":"out"}}}`
	run := func() time.Duration {
		began := time.Now()
		col := &client.Collector{}
		end, err := client.Run(context.Background(), c, &message.RunRequest{Workflow: flow}, col)
		if err != nil || end == nil || end.Type != message.EventSuccess || len(col.Files) != 1 {
			b.Fatalf("%+v %v", end, err)
		}
		return time.Since(began)
	}
	run()
	var took []time.Duration
	for b.Loop() {
		took = append(took, run())
	}
	slices.Sort(took)
	b.ReportMetric(float64(took[len(took)/2].Microseconds())/1000, "p50-ms")
}

// BenchmarkIdle measures what an idle daemon costs: resident memory of the daemon's own process, and the share of a
// processor that 64 clients take that listen to all events and say nothing. One iteration takes ten seconds.
func BenchmarkIdle(b *testing.B) {
	program := harness.Build(b)
	s := harness.Start(b, program, "", "--log", "error")
	s.Until("a job has run", func() bool {
		_, err := client.Submit(context.Background(), s.Client(), &message.RunRequest{ID: "once", Workflow: harness.Quick})
		return err == nil
	})
	s.WaitState(s.Client(), "once", message.Done)
	pid := s.Cmd.Process.Pid
	share := func() float64 {
		before := harness.Census(pid)
		time.Sleep(10 * time.Second)
		return float64(harness.Census(pid).CPU-before.CPU) / float64(10*time.Second) * 100
	}
	alone := share()
	for i := range 64 {
		if i%2 == 0 {
			harness.Dial(b, s)
			continue
		}
		nc, err := nats.Connect(s.URL)
		if err != nil {
			b.Fatal(err)
		}
		b.Cleanup(nc.Close)
		if _, err := nc.Subscribe("patchbay.v1.events.>", func(*nats.Msg) {}); err != nil {
			b.Fatal(err)
		}
	}
	var with float64
	for b.Loop() {
		with = share()
	}
	b.ReportMetric(float64(harness.Census(pid).Resident)/(1<<20), "MiB-resident")
	b.ReportMetric(alone, "%cpu-alone")
	b.ReportMetric(with, "%cpu-64-clients")
}

// BenchmarkQueued measures a daemon in which 10,000 jobs wait: how long submit, a list of ten, and a restart take, and
// what it keeps in memory. One iteration is one restart. go test ./tests -run '^$' -bench Queued -benchtime 3x
func BenchmarkQueued(b *testing.B) {
	const jobs = 10_000
	program := harness.Build(b)
	s := harness.Start(b, program, "", "--sync", "interval", "--log", "error")
	c, ctx := s.Client(), context.Background()
	var submits, lists, starts []time.Duration
	later := time.Now().Add(24 * time.Hour).UnixMilli()
	for i := range jobs {
		began := time.Now()
		if _, err := client.Submit(ctx, c, &message.RunRequest{
			ID: fmt.Sprint("q", i), Workflow: harness.Quick, NotBefore: later,
		}); err != nil {
			b.Fatal(err)
		}
		submits = append(submits, time.Since(began))
	}
	for range 100 {
		began := time.Now()
		if _, _, err := client.List(ctx, c, message.Queued, 10); err != nil {
			b.Fatal(err)
		}
		lists = append(lists, time.Since(began))
	}
	resident := harness.Census(s.Cmd.Process.Pid).Resident
	for b.Loop() {
		s.Kill()
		began := time.Now()
		s.Launch()
		s.Until("it knows all jobs", func() bool {
			_, counts, err := client.List(ctx, s.Client(), message.Queued, 1)
			return err == nil && counts[message.Queued] == jobs
		})
		starts = append(starts, time.Since(began))
	}
	for name, took := range map[string][]time.Duration{"submit": submits, "list": lists, "restart": starts} {
		slices.Sort(took)
		b.ReportMetric(float64(took[len(took)*99/100].Microseconds())/1000, name+"-p99-ms")
	}
	b.ReportMetric(float64(resident)/(1<<20), "MiB-resident")
	b.ReportMetric(float64(harness.Census(s.Cmd.Process.Pid).Resident)/(1<<20), "MiB-after-restart")
}
