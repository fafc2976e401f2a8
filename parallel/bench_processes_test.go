package parallel

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"patchbay/models/source"
	"patchbay/parallel/hardware"
	"patchbay/parallel/process"
	"patchbay/parallel/remote"
	"patchbay/parallel/request"
)

// rankSocket is the environment variable with the address at which a TestRankProcess listens.
const rankSocket = "PATCHBAY_TEST_RANK"

// TestRankProcess is the rank process that other tests and BenchmarkPlacements start, not a test of its own.
func TestRankProcess(t *testing.T) {
	at := os.Getenv(rankSocket)
	if at == "" {
		t.Skip("others start it")
	}
	conn, err := net.FileConn(os.NewFile(3, "leader"))
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("unix", at)
	if err != nil {
		t.Fatal(err)
	}
	proc, err := process.New(process.Config{NewOps: testOps, Places: 1})
	if err != nil {
		t.Fatal(err)
	}
	defer proc.Close()
	known := map[string]process.Weights{}
	var loader source.Loader
	open := func(_ string, model []byte) (process.Weights, error) {
		name := string(model)
		width, err := strconv.Atoi(name)
		if err != nil {
			return loader.Decode(model)
		}
		if known[name] == nil {
			known[name] = benchModel(t, width).Weights
		}
		return known[name], nil
	}
	if err := remote.Serve(conn, remote.Config{Host: proc, Listen: l, Open: open}); err != nil {
		t.Fatal(err)
	}
}

// processes is a Hosts of ranks in processes of their own, each running this test binary.
type processes struct {
	dir     string
	silence time.Duration // after which a process is given up; 0: remote.Silence
	room    int
	pids    []int
}

func (p *processes) Changed(ranks int) bool { return ranks > p.room }

func (*processes) Missing() []string { return nil }

func (*processes) Survey() hardware.Survey { return hardware.Survey{} }

func (p *processes) Start(ranks int) (out []process.Process, err error) {
	p.room, p.pids = ranks, nil
	var clients []*remote.Process
	for i := range ranks {
		c, err := p.process(i)
		if err != nil {
			return nil, err
		}
		clients, out = append(clients, c), append(out, c)
	}
	_, err = remote.Meet(clients, remote.ByHost, false)
	return out, err
}

func (p *processes) process(i int) (*remote.Process, error) {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	leaderEnd, rankEnd := os.NewFile(uintptr(pair[0]), "rank"), os.NewFile(uintptr(pair[1]), "leader")
	conn, err := net.FileConn(leaderEnd)
	if err = errors.Join(err, leaderEnd.Close()); err != nil {
		return nil, err
	}
	at := filepath.Join(p.dir, fmt.Sprintf("%d-%d", p.room, i))
	_ = os.Remove(at) // left by a process that was killed
	cmd := exec.Command(os.Args[0], "-test.run=^TestRankProcess$")
	cmd.Env = append(os.Environ(), rankSocket+"="+at)
	cmd.Stderr, cmd.ExtraFiles = os.Stderr, []*os.File{rankEnd}
	err = remote.Start(cmd)
	if err = errors.Join(err, rankEnd.Close()); err != nil {
		return nil, err
	}
	p.pids = append(p.pids, cmd.Process.Pid)
	return remote.NewClient(fmt.Sprintf("process %d", i), conn, p.silence, func() error {
		if p.silence > 0 {
			_ = cmd.Process.Kill() // it may be stopped
		}
		return cmd.Wait()
	})
}

// processorTime returns the CPU time that the processes have used, in seconds.
func (p *processes) processorTime() (sum float64) {
	for _, pid := range p.pids {
		var ts unix.Timespec
		if unix.ClockGettime(int32(^pid<<3|2), &ts) == nil { // its CPU-time clock
			sum += float64(ts.Nano()) / 1e9
		}
	}
	return sum
}

// BenchmarkPlacements runs plans with ranks in threads and in processes of their own, alternating, and reports the
// median ratio of time and of CPU time of processes to threads over pairs of runs.
func BenchmarkPlacements(b *testing.B) {
	for _, c := range []struct {
		width, side int
		plan        string
	}{
		{768, 64, "ulysses=2"},
		{768, 64, "pipe=2,patches=4,warmup=1"},
		{768, 64, "ring=2"},
		{768, 64, "tensor=2"},
		{192, 64, "ulysses=2"},
		{192, 16, "ulysses=2"},
	} {
		b.Run(fmt.Sprintf("%d-%d/%s", c.width, c.side, c.plan), func(b *testing.B) {
			r := benchRequest(b, c.width, c.side)
			r.Plan = c.plan
			far := *r
			far.Model.Weights = named{r.Model.Weights, strconv.Itoa(c.width)}
			p := &processes{dir: b.TempDir()}
			var engines [2]*Pool
			for i, h := range []Processes{nil, p} {
				var err error
				if engines[i], err = NewPool(Config{NewOps: testOps, Processes: h}); err != nil {
					b.Fatal(err)
				}
				defer engines[i].Close()
			}
			run := func(i int) (wall, used float64) {
				before := processorTime() + p.processorTime()
				res, err := engines[i].Sample(context.Background(), []*request.Request{r, &far}[i], nil)
				if err != nil {
					b.Fatal(err)
				}
				return median(res.Stats.StepSeconds), processorTime() + p.processorTime() - before
			}
			run(0)
			run(1)
			var walls, cpus, threads, children []float64
			for i := 0; b.Loop(); i++ {
				var wall, used [2]float64
				for k := range 2 {
					k = (k + i) % 2
					wall[k], used[k] = run(k)
				}
				walls, cpus = append(walls, wall[1]/wall[0]), append(cpus, used[1]/used[0])
				threads, children = append(threads, used[0]), append(children, used[1])
			}
			b.ReportMetric(median(walls), "time-ratio")
			b.ReportMetric(median(cpus), "cpu-ratio")
			b.ReportMetric(1000*median(threads)/4, "threads-cpu-ms/step")
			b.ReportMetric(1000*median(children)/4, "children-cpu-ms/step")
		})
	}
}
