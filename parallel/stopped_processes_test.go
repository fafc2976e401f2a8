package parallel

import (
	"errors"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"patchbay/fault"
	"patchbay/models/sampling"
	"patchbay/parallel/request"
)

// TestKilledAndStoppedProcesses checks that a process that is killed, or stopped, while the other one waits for it
// ends the run and is named, and that the next run has new processes and the same bits.
func TestKilledAndStoppedProcesses(t *testing.T) {
	for name, c := range map[string]struct {
		signal syscall.Signal
		want   string
	}{
		"killed":  {syscall.SIGKILL, "process 1 has gone: signal: killed"},
		"stopped": {syscall.SIGSTOP, "process 1 has gone: it has said nothing for 2s"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel() // mostly waits
			p := &processes{dir: t.TempDir(), silence: 2 * time.Second}
			e, err := NewPool(Config{NewOps: testOps, Processes: p})
			if err != nil {
				t.Fatal(err)
			}
			defer e.Close()
			r := benchRequest(t, 192, 16)
			r.Plan = "ulysses=2"
			r.Model.Weights = named{r.Model.Weights, "192"}
			want, err := e.Sample(t.Context(), r, nil)
			if err != nil {
				t.Fatal(err)
			}
			long := *r
			if long.Sigmas, err = sampling.MakeSigmas(r.Sampling, "simple", 1000); err != nil {
				t.Fatal(err)
			}
			_, err = e.Sample(t.Context(), &long, func(at request.Progress) error {
				if at.Step == 2 {
					_ = syscall.Kill(p.pids[1], c.signal)
				}
				return nil
			})
			var f *fault.Error
			if !errors.As(err, &f) || f.Code != fault.HostLost || !strings.Contains(f.Error(), c.want) {
				t.Errorf("got %v, want %q", err, c.want)
			}
			got, err := e.Sample(t.Context(), r, nil)
			if err != nil || !slices.Equal(got.Latent.Data, want.Latent.Data) {
				t.Errorf("the next run: %v, or other bits", err)
			}
		})
	}
}
