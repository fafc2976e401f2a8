package daemon

import (
	"context"
	"fmt"
	"runtime/debug"
	"runtime/metrics"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"patchbay/fault"
	"patchbay/ipc/jobs"
	"patchbay/ipc/message"
)

// resident returns how many bytes of the system's memory the Go runtime holds.
func resident() int64 {
	s := []metrics.Sample{{Name: "/memory/classes/total:bytes"}, {Name: "/memory/classes/heap/released:bytes"}}
	metrics.Read(s)
	return int64(s[0].Value.Uint64() - s[1].Value.Uint64())
}

// pictures returns a workflow that makes a plain picture and its inverse. Every color makes another picture.
func pictures(side, color int) string {
	return fmt.Sprintf(`{"1":{"class_type":"EmptyImage","inputs":{"width":%d,"height":%d,"batch_size":1,"color":%d}},
		"2":{"class_type":"ImageInvert","inputs":{"image":["1",0]}},
		"3":{"class_type":"PreviewImage","inputs":{"images":["2",0]}}}`, side, side, color)
}

// TestValuesStayWithinMemory checks that --memory bounds the values of nodes too. Jobs of changing sizes exceed it by
// at most a tenth, a picture that is larger is refused before it is made, and an idle worker gives its memory back.
func TestValuesStayWithinMemory(t *testing.T) {
	if testing.Short() {
		t.Skip("long: many jobs of 16 MB and more in one worker")
	}
	was := debug.SetMemoryLimit(-1)
	defer debug.SetMemoryLimit(was)
	const memory = 300 << 20
	cfg := &Config{
		Memory: "300M", Input: t.TempDir(), Output: t.TempDir(), Devices: "cpu", Log: "error",
		FreeAfter: 100 * time.Millisecond, Limits: Limits{Depth: 64, Steps: 100},
	}
	ex, _, closing, err := localExecutor(cfg, zerolog.Nop(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer closing()
	run := func(side, color int) error {
		task := jobs.Task{Req: &message.RunRequest{Workflow: pictures(side, color)}, Attempt: 1}
		_, err := ex.Run(context.Background(), task, jobs.Sink{
			Event: func(message.Event) {}, Preview: func(string, []byte) {},
		})
		return err
	}
	most := int64(0)
	for i := range 16 {
		if err := run(1024+256*(i%5), i); err != nil {
			t.Fatal(err)
		}
		most = max(most, resident())
	}
	if most > memory/10*11 {
		t.Errorf("16 jobs took %d MB of the 300 MB", most>>20)
	}
	err = run(8192, 99)
	if e := fault.From(err); err == nil || e.Public() != fault.TooLarge {
		t.Errorf("a picture of 800 MB: %v, want too_large", err)
	} else {
		t.Log(e)
	}
	before := resident()
	for began := time.Now(); resident() > 100<<20; time.Sleep(10 * time.Millisecond) {
		if time.Since(began) > time.Minute {
			t.Fatalf("%d MB are held by an idle worker, %d before", resident()>>20, before>>20)
		}
	}
}
