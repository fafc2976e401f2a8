package tests

import (
	"bytes"
	"context"
	"fmt"
	"image"
	"image/color"
	"image/png"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"patchbay/ipc/client"
	"patchbay/ipc/message"
)

// BenchmarkStart measures the time from sending a job to an idle daemon until the worker's execution_start arrives on
// NATS: request, record, queue, swap, worker and event together. go test ./tests -run '^$' -bench Start -benchtime 200x
func BenchmarkStart(b *testing.B) {
	program := buildProgram(b)
	for _, mode := range []string{"interval", "always"} {
		b.Run("sync="+mode, func(b *testing.B) {
			s := startServer(b, program, "", "--sync", mode, "--log", "error", "--keep-jobs", "100")
			c := s.client()
			nc, err := nats.Connect(s.url)
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
				if _, err := client.Submit(context.Background(), c, &message.RunRequest{ID: id, Workflow: quick}); err != nil {
					b.Fatal(err)
				}
				for subject := range heard {
					if subject == message.EventSubject(id, message.EventStart) {
						break
					}
				}
				took := time.Since(began)
				s.waitState(c, id, message.Done) // the next one finds the daemon idle
				return took
			}
			start(-1) // once the worker is up
			var took []time.Duration
			for i := 0; b.Loop(); i++ {
				took = append(took, start(i))
			}
			slices.Sort(took)
			b.ReportMetric(float64(took[len(took)/2].Microseconds())/1000, "p50-ms")
			b.ReportMetric(float64(took[len(took)*99/100].Microseconds())/1000, "p99-ms")
		})
	}
}

// BenchmarkPicture measures a job that saves one picture of 1024 x 1024 whose pixels the worker has: PNG, file, and the
// file back to the client.
func BenchmarkPicture(b *testing.B) {
	program := buildProgram(b)
	input := filepath.Join(b.TempDir(), "input")
	if err := os.MkdirAll(input, 0o755); err != nil {
		b.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(input, "photo.png"), photo(1024), 0o644); err != nil {
		b.Fatal(err)
	}
	s := startServer(b, program, "", "--input", input, "--log", "error")
	c := s.client()
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

// photo returns a PNG with smooth colors and some grain, which compresses about as a photograph does.
func photo(size int) []byte {
	rnd := rand.New(rand.NewPCG(1, 2))
	m := image.NewNRGBA(image.Rect(0, 0, size, size))
	for y := range size {
		for x := range size {
			grain := uint8(rnd.IntN(8))
			m.SetNRGBA(x, y, color.NRGBA{
				uint8(x*200/size) + grain, uint8(y*200/size) + grain,
				uint8((x+y)*100/size) + grain, 255,
			})
		}
	}
	var out bytes.Buffer
	if err := png.Encode(&out, m); err != nil {
		panic(err)
	}
	return out.Bytes()
}

// BenchmarkIdle measures what an idle daemon costs: resident memory of the daemon's own process, and the share of a
// processor that 64 clients take that listen to all events and say nothing. One iteration takes ten seconds.
func BenchmarkIdle(b *testing.B) {
	program := buildProgram(b)
	s := startServer(b, program, "", "--log", "error")
	s.until("a job has run", func() bool {
		_, err := client.Submit(context.Background(), s.client(), &message.RunRequest{ID: "once", Workflow: quick})
		return err == nil
	})
	s.waitState(s.client(), "once", message.Done)
	pid := s.cmd.Process.Pid
	share := func() float64 {
		before := census(pid)
		time.Sleep(10 * time.Second)
		return float64(census(pid).cpu-before.cpu) / float64(10*time.Second) * 100
	}
	alone := share()
	for i := range 64 {
		if i%2 == 0 {
			dialSocket(b, s)
			continue
		}
		nc, err := nats.Connect(s.url)
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
	b.ReportMetric(float64(census(pid).resident)/(1<<20), "MiB-resident")
	b.ReportMetric(alone, "%cpu-alone")
	b.ReportMetric(with, "%cpu-64-clients")
}
