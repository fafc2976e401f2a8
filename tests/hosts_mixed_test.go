package tests

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"image"
	"image/png"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"patchbay/ipc/client"
	"patchbay/ipc/message"
	"patchbay/parallel/hardware"
	"patchbay/tests/harness"
)

// TestHostsThatDiffer checks that a machine whose file of rates says that it is four times as slow as the other gets a
// quarter of the other's work, though it is first in the list, and that the picture is that of one rank.
func TestHostsThatDiffer(t *testing.T) {
	t.Parallel()
	m, err := hardware.NewMachine("cpu")
	if err != nil {
		t.Fatal(err)
	}
	m.Device.Launch, m.Device.Source = 0, "measured elsewhere"
	m.Device.GEMM, m.Device.Attention, m.Device.Traffic = m.Device.GEMM/4, m.Device.Attention/4, m.Device.Traffic/4
	text, err := m.JSON()
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "rates.json")
	if err := os.WriteFile(file, text, 0o600); err != nil {
		t.Fatal(err)
	}
	unlikeHosts(t, []string{"--rates", file}, nil, 22, 28, "cpu: measured elsewhere", "cpu: two cores with AVX-512")
}

// unlikeHosts draws a picture on a slow and a fast host with these flags. The slow one must have least to most percent
// of the speed of the other, and the log must name the rates of both.
func unlikeHosts(t *testing.T, slow, fast []string, least, most int, rates ...string) {
	t.Helper()
	program := harness.Build(t)
	key := filepath.Join(t.TempDir(), "cluster.key")
	if out, err := harness.Printed(exec.Command(program, "host", "--new-key", key)); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	var list []string
	for _, args := range [][]string{slow, fast} {
		m := startMachine(t, program, key, harness.DemoModels(t), append(args, "--patience", "1m")...)
		list = append(list, m.address)
	}
	want, _ := small(harness.Start(t, program, "", "--devices", "cpu", "--compute", "f32"), "here", "", 7)
	s := harness.Start(t, program, "", "--devices", "cpu", "--compute", "f32", "--cluster-key", key, "--patience", "1m",
		"--hosts", strings.Join(list, ","))
	got, metrics := small(s, "both", "ring=2", 7)
	if t.Failed() {
		return
	}
	if worst := channelsApart(t, got, want); worst > 1 {
		t.Errorf("differs from one rank by %d levels, want at most 1", worst)
	}
	text, err := json.Marshal(metrics)
	if err != nil {
		t.Fatal(err)
	}
	speeds := regexp.MustCompile(`ring=2,speeds=100:(\d+)"`).FindSubmatch(text)
	if speeds == nil {
		t.Fatalf("the job ran by equal shares, or the slow host first: %s", text)
	}
	if n, _ := strconv.Atoi(string(speeds[1])); n < least || n > most {
		t.Errorf("ran by speeds 100 to %d, want %d to %d", n, least, most)
	}
	for i, rate := range rates {
		part := fmt.Sprintf(`"host":"host %s","rates":"%s`, list[i], rate)
		s.Until("the log tells "+part, func() bool { return strings.Contains(s.Log.String(), part) })
	}
}

// channelsApart returns the largest difference of two pictures in a channel, in levels.
func channelsApart(t *testing.T, a, b []byte) int {
	t.Helper()
	var levels [2][]int
	for i, raw := range [][]byte{a, b} {
		img, err := png.Decode(bytes.NewReader(raw))
		if err != nil {
			t.Fatal(err)
		}
		levels[i] = channels(img)
	}
	if len(levels[0]) != len(levels[1]) {
		t.Fatalf("pictures of %d and %d values", len(levels[0]), len(levels[1]))
	}
	return apart(levels[0], levels[1])
}

// channels returns the channels of all pixels, 0 to 255.
func channels(img image.Image) (levels []int) {
	for y := range img.Bounds().Dy() {
		for x := range img.Bounds().Dx() {
			r, g, b, _ := img.At(x, y).RGBA()
			levels = append(levels, int(r>>8), int(g>>8), int(b>>8))
		}
	}
	return levels
}

// small draws the demo in 64x64 pixels and six steps, and returns the picture and the job's metrics. It may be called
// from any goroutine.
func small(s *harness.Server, id, plan string, seed int) (picture []byte, metrics map[string]any) {
	s.T.Helper()
	flow := strings.NewReplacer(`"width": 128, "height": 128`, `"width": 64, "height": 64`, `"steps": 12`, `"steps": 6`)
	text, err := os.ReadFile("../examples/demo.json")
	if err != nil {
		s.T.Error(err)
		return nil, nil
	}
	job := regexp.MustCompile(`"seed": \d+`).ReplaceAllString(flow.Replace(string(text)), fmt.Sprintf(`"seed": %d`, seed))
	ctx, end := context.WithTimeout(context.Background(), harness.Patience)
	defer end()
	col := client.Collector{Event: func(ev message.Event) {
		if ev.Type == message.EventMetrics {
			metrics = ev.Data
		}
	}}
	last, err := client.Run(ctx, s.Client(), &message.RunRequest{ID: id, Workflow: job, Plan: plan}, &col)
	if err != nil || last.Error != nil || len(col.Files) == 0 {
		s.T.Errorf("%s: %v, %+v\n%s", id, err, last, s.Log)
		return nil, nil
	}
	return col.Files[0].Data, metrics
}

// apart returns the largest difference of two pictures in a channel, in levels.
func apart(a, b []int) (worst int) {
	for i, v := range a {
		worst = max(worst, v-b[i], b[i]-v)
	}
	return worst
}
