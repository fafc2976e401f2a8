package classes

import (
	"context"
	"fmt"
	"net"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"patchbay/models/source"
	"patchbay/node/graph"
	"patchbay/parallel"
	"patchbay/parallel/hardware"
	"patchbay/parallel/process"
	"patchbay/parallel/remote"
)

// pipedHosts runs ranks that communicate with their leader only over pipes and sockets.
type pipedHosts struct {
	t      *testing.T
	room   int
	held   []*process.Local
	served sync.WaitGroup
}

func (h *pipedHosts) Changed(ranks int) bool { return ranks > h.room }
func (*pipedHosts) Missing() []string        { return nil }
func (*pipedHosts) Survey() hardware.Survey  { return hardware.Survey{} }

func (h *pipedHosts) Start(ranks int) (out []process.Process, err error) {
	h.room, h.held = ranks, nil
	var clients []*remote.Process
	for i := range ranks {
		l, err := net.Listen("unix", filepath.Join(h.t.TempDir(), "rank.sock"))
		check(h.t, err)
		proc, err := process.New(process.Config{NewOps: fastOps, Places: 1})
		check(h.t, err)
		h.held = append(h.held, proc)
		clientEnd, serverEnd := net.Pipe()
		var loader source.Loader
		offer := remote.Config{Host: proc, Listen: l, Open: func(_ string, model []byte) (process.Weights, error) {
			return loader.Decode(model)
		}}
		h.served.Go(func() {
			_ = remote.Serve(serverEnd, offer)
			proc.Close()
			_ = l.Close()
		})
		c, err := remote.NewClient(fmt.Sprint("process ", i), clientEnd, 0, nil)
		check(h.t, err)
		clients, out = append(clients, c), append(out, c)
	}
	_, err = remote.Meet(clients, remote.ByHost, false)
	return out, err
}

// TestEncodersOfHostsDrawTheSamePicture checks that, with ranks on hosts of their own, a workflow with a language
// model gives the same bits as in one process on the same plan. Each host of the tensor group must hold a part of the
// encoder, and none if the plan has no tensor group.
func TestEncodersOfHostsDrawTheSamePicture(t *testing.T) {
	if testing.Short() {
		t.Skip("long: TestHosts draws on hosts of their own")
	}
	roots := chatRoots(t, "../../models/tokenizer/testdata/tiny_qwen")
	draw := func(e *parallel.Pool, plan string) string {
		runner, err := graph.NewRunner(graph.Config{Engine: e, Roots: roots, Catalogue: All()})
		check(t, err)
		defer runner.Close()
		w := graphOf(t, fmt.Sprintf(zImageFlow, "a cat"))
		result, err := runner.Run(context.Background(), graph.Job{ID: "z", Workflow: w, Plan: plan}, nil)
		check(t, err)
		return string(result.Outputs[0].Data)
	}
	for plan, parts := range map[string]int{"tensor=2": 2, "tensor=2,ulysses=2": 2, "ulysses=2": 0} {
		h := &pipedHosts{t: t}
		e, err := parallel.NewPool(parallel.Config{NewOps: fastOps, Processes: h})
		check(t, err)
		if got, want := draw(e, plan), draw(engineOf(t, fastOps), plan); got != want {
			t.Errorf("%s: the pictures differ", plan)
		}
		for i, proc := range h.held {
			found := false
			for _, r := range proc.Resident() {
				found = found || strings.HasPrefix(r.Key, "qwen3 ") && strings.Contains(r.Key, fmt.Sprintf("#tensor%d/2", i))
			}
			if found != (i < parts) {
				t.Errorf("%s: process %d has a part of the encoder: %v", plan, i, found)
			}
		}
		e.Close()
		h.served.Wait()
	}
}
