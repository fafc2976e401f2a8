package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"patchbay/cli/console"
	"patchbay/cli/settings"
	"patchbay/cli/workflow"
	"patchbay/daemon"
	"patchbay/ipc/client"
	"patchbay/ipc/message"
	"patchbay/node/graph"
)

type demoFlags struct {
	prompt, plan, out string
	devices           daemon.Config // see settings.Devices
	seed              string
	ranks             int
	json              bool
}

func demoCmd() *cobra.Command {
	var f demoFlags
	cmd := &cobra.Command{
		Use:   "demo",
		Short: "Make a picture with the model that comes along",
		Long: `demo starts a daemon of its own on a free port, sends it examples/demo.json over NATS, shows the progress,
saves the picture and says where the time went. It leaves nothing behind but the picture. The model is tiny and made
for this: simple shapes in plain colours.`,
		Example: `  patchbay demo
  patchbay demo --prompt "a small blue star on a green background" --seed 7
  patchbay demo --ranks 2`,
		Args: console.ExactArgs(0),
		RunE: func(cmd *cobra.Command, _ []string) error { return demo(cmd, &f) },
	}
	fl := cmd.Flags()
	fl.StringVar(&f.prompt, "prompt", "", "what to draw")
	fl.StringVar(&f.seed, "seed", "", "seed of the noise, 0 to 2^64-1")
	fl.IntVar(&f.ranks, "ranks", 0,
		"split the picture over at most so many ranks; the plan is chosen among those that give the same picture")
	fl.StringVar(&f.plan, "plan", "", "how to split the work, instead of --ranks")
	complete(cmd, "plan", plans)
	settings.Devices(fl, &f.devices)
	fl.StringVar(&f.out, "out", "demo.png", "file to write")
	fl.BoolVar(&f.json, "json", false, "print one JSON object a line for every event")
	return cmd
}

func (f *demoFlags) request(file string) (*message.RunRequest, *graph.Workflow, error) {
	req, w, err := workflow.Read(file, nil)
	if err != nil {
		return nil, nil, err
	}
	sets := []string{}
	if f.prompt != "" {
		sets = append(sets, "6.text="+f.prompt)
	}
	if f.seed != "" {
		sets = append(sets, "3.seed="+f.seed)
	}
	if err := workflow.SetInputs(w, sets); err != nil {
		return nil, nil, err
	}
	if f.ranks < 0 || f.ranks > 0 && f.plan != "" {
		return nil, nil, console.BadInput(errors.New("--ranks is 1 or more, and --plan replaces it"))
	}
	req.Workflow, req.Plan = string(w.JSON()), f.plan
	if f.ranks > 1 {
		req.Plan = "ranks=" + strconv.Itoa(f.ranks)
	}
	return req, w, nil
}

func demo(cmd *cobra.Command, f *demoFlags) error {
	if err := daemon.CheckLevel(); err != nil {
		return err
	}
	if err := f.devices.CheckDevices(); err != nil {
		return err
	}
	examples, err := workflow.Examples()
	if err != nil {
		return err
	}
	req, w, err := f.request(filepath.Join(examples, "demo.json"))
	if err != nil {
		return err
	}
	if err := console.CheckFolder(filepath.Dir(f.out)); err != nil {
		return console.BadInput(fmt.Errorf("--out: %w", err))
	}
	temp, err := os.MkdirTemp("", "patchbay-demo-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(temp) }()
	began := time.Now()
	url, stop, err := startDemoDaemon(temp, filepath.Join(examples, "demo"), settings.GivenDevices(cmd.Flags()))
	if err != nil {
		return err
	}
	defer stop()
	c, err := client.DialNATS(url)
	if err != nil {
		return err
	}
	defer console.CloseQuietly(c)
	ready := time.Since(began)
	shows := console.NewProgress(cmd.OutOrStdout(), f.json)
	defer shows.Close()
	shows.Names(w)
	var work console.RunStats
	col := &client.Collector{
		Accepted: shows.Accepted, Event: func(ev message.Event) { work.Take(ev); shows.Event(ev) },
	}
	ctx, done := cancelOnSignal(cmd.Context(), c, req.ID)
	defer done()
	sent := time.Now()
	end, err := client.Run(ctx, c, req, col)
	total := time.Since(sent)
	if err := shows.Finish(end, err, nil, ""); err != nil {
		return err
	}
	if len(col.Files) != 1 {
		return fmt.Errorf("the demo made %d pictures, want 1", len(col.Files))
	}
	if err := os.WriteFile(f.out, col.Files[0].Data, 0o644); err != nil {
		return err
	}
	if f.json {
		console.PrintJSON(cmd.OutOrStdout(), map[string]any{"type": "saved", "job": end.Job, "path": f.out})
		return nil
	}
	shows.Say("%s: %dx%d pixels", f.out, col.Files[0].Ref.Width, col.Files[0].Ref.Height)
	work.ShowWork(shows)
	showTimes(shows, ready, total, work.Timings)
	return nil
}

// startDemoDaemon starts this program as a daemon with a store of its own and waits until it has published its
// address. devices are flags of serve. It returns the URL of its NATS server and a function that stops the daemon.
func startDemoDaemon(temp, models string, devices []string) (string, func(), error) {
	self, err := os.Executable()
	if err != nil {
		return "", nil, err
	}
	store := filepath.Join(temp, "store")
	cmd := exec.Command(self, append([]string{
		"serve", "--compute", "f32", "--listen", "127.0.0.1:0", "--socket", "off", "--store", store, "--models", models,
		"--input", filepath.Join(temp, "input"), "--output", filepath.Join(temp, "output"), "--log", "warn",
	}, devices...)...)
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		return "", nil, fmt.Errorf("start daemon: %w", err)
	}
	var why error
	ended := make(chan struct{})
	go func() { why = cmd.Wait(); close(ended) }()
	stop := func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		select {
		case <-ended:
		case <-time.After(5 * time.Second):
			_ = cmd.Process.Kill()
			<-ended
		}
	}
	deadline, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	for {
		var r daemon.Runtime
		if b, err := os.ReadFile(daemon.RuntimePath(store)); err == nil && json.Unmarshal(b, &r) == nil {
			return r.NATS, stop, nil
		}
		select {
		case <-ended:
			return "", nil, fmt.Errorf("the daemon ended: %w", why)
		case <-deadline.Done():
			stop()
			return "", nil, errors.New("the daemon did not start within 30 s")
		case <-time.After(5 * time.Millisecond):
		}
	}
}

// showTimes prints where the time went: what the worker reports, and the rest as transport and graph.
func showTimes(s *console.Progress, ready, total time.Duration, t *console.Timings) {
	if t == nil {
		return
	}
	part := func(seconds float64) time.Duration { return time.Duration(seconds * float64(time.Second)) }
	load, text, denoise, decode := part(t.Load), part(t.Text), part(t.Denoise), part(t.VAE)
	line := func(name string, d time.Duration, more string) {
		s.Say("  %-18s %9.1f ms%s", name, float64(d.Microseconds())/1000, more)
	}
	s.Say("time:")
	line("daemon start", ready, " (once)")
	line("load weights", load, "")
	line("text encoders", text, "")
	per := ""
	if n := len(t.Steps); n > 0 {
		per = fmt.Sprintf(" (%d steps, %.1f ms each)", n, float64(denoise.Microseconds())/1000/float64(n))
	}
	line("denoise", denoise, per)
	line("VAE", decode, "")
	line("transport, graph", total-load-text-denoise-decode, "")
	line("total", total, "")
}
