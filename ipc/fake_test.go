package ipc

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"go.uber.org/goleak"

	"patchbay/node"
)

// TestMain also is the worker process of the supervisor's tests: with PATCHBAY_TEST_WORKER set it serves a fake executor on its stdin and stdout.
func TestMain(m *testing.M) {
	if os.Getenv("PATCHBAY_TEST_WORKER") != "" {
		cfg := WorkerConfig{Executor: &fake{name: "fake"}, Service: fakeService(), Log: zerolog.Nop()}
		ctx := context.Background()
		if err := RunWorker(ctx, ctx, os.Stdin, os.Stdout, cfg); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	goleak.VerifyTestMain(m)
}

// fake runs a workflow whose nodes say what happens, in order: Wait {ms}, Step {n}, Picture {bytes}, Panic, Die {signal}, Hang, Fail.
type fake struct {
	name string
	ran  chan string // receives the id of every job that starts, if not nil
}

func (f *fake) Name() string                    { return f.name }
func (f *fake) Ready(ctx context.Context) error { return ctx.Err() }

func (f *fake) Run(ctx context.Context, task Task, sink Sink) (*Outcome, error) {
	w, fail := parseWorkflow(task.Req.Workflow)
	if fail != nil {
		return nil, fail
	}
	if f.ran != nil {
		f.ran <- task.Req.ID
	}
	sink.Event(Event{Type: EventStart, Data: map[string]any{}})
	out := &Outcome{Metrics: map[string]any{"executed": []any{}}}
	for _, id := range w.IDs() {
		sink.Event(Event{Type: "executing", Node: id, Data: map[string]any{"node": id}})
		n, _ := w.Input(id, "n")
		count, _ := n.(int64)
		switch w.Class(id) {
		case "Wait":
			select {
			case <-time.After(time.Duration(count) * time.Millisecond):
			case <-ctx.Done():
				return nil, context.Cause(ctx)
			}
		case "Step":
			for i := range count {
				sink.Event(Event{Type: EventProgress, Node: id, Data: map[string]any{"value": i + 1, "max": count}})
				if sink.Preview != nil && task.Req.Preview {
					sink.Preview(id, []byte("jpeg"))
				}
			}
		case "Picture":
			out.Files = append(out.Files, fileOf(fakePicture(id, int(count))))
		case "Panic":
			panic("the fake panics")
		case "Die":
			if mark := filepath.Join(os.TempDir(), fmt.Sprintf("patchbay-died-%d-%s", os.Getppid(), task.Req.ID)); count != 0 { // dies the first time only
				if os.Remove(mark) == nil {
					continue
				}
				if err := os.WriteFile(mark, nil, 0o600); err != nil {
					return nil, err
				}
			}
			fmt.Fprintln(os.Stderr, "fatal error: the fake dies")
			_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
			select {}
		case "Hang":
			time.Sleep(time.Hour) // deaf to ctx, as a kernel that never returns
		case "Fail":
			return nil, &node.Failure{Code: node.CodeOutOfMemory, Message: "no memory", Node: id, Class: "Fail"}
		}
	}
	return out, nil
}

func fakePicture(id string, n int) node.Output {
	data := make([]byte, n)
	for i := range data {
		data[i] = byte(i * 7)
	}
	return node.Output{Node: id, Kind: "images", Type: "output", Prefix: "fake", Ext: ".png", Data: data, Width: 1, Height: 1}
}

func (f *fake) Exec(_ context.Context, req *ExecRequest) (*ExecReply, error) {
	switch req.Class {
	case "Echo":
		v, _ := req.Inputs.Get("value")
		return &ExecReply{Outputs: []any{v}}, nil
	case "Sum": // touches every page
		v, _ := req.Inputs.Get("value")
		t, ok := v.(*Tensor)
		if !ok {
			return nil, Errorf(ErrBadRequest, "no tensor")
		}
		sum := int64(0)
		for i := 0; i < len(t.Data); i += 4096 {
			sum += int64(t.Data[i])
		}
		return &ExecReply{Outputs: []any{sum, int64(len(t.Data))}}, nil
	case "Loader":
		return &ExecReply{Outputs: []any{node.NewObject(handleKey, f.name+"-h1", "type", "MODEL")}}, nil
	}
	return nil, Errorf(ErrNoNodeType, "no class %q", req.Class)
}

func (f *fake) Free(_ context.Context, req *FreeRequest) (*FreeReply, error) {
	return &FreeReply{Freed: len(req.Handles)}, nil
}

func fakeService() ServiceConfig {
	classes := " Wait Step Picture Panic Die Hang Fail "
	return ServiceConfig{
		Validate: func(_ *RunRequest, w *node.Workflow) (map[string]any, error) {
			for _, id := range w.IDs() {
				if !strings.Contains(classes, " "+w.Class(id)+" ") {
					return nil, &node.Failure{
						Code: node.CodeInvalidPrompt, Message: "Cannot execute because node " + w.Class(id) + " does not exist.", Details: "Node ID '#" + id + "'",
						NodeErrors: map[string]any{id: map[string]any{"class_type": w.Class(id)}},
					}
				}
			}
			return nil, nil
		},
		Describe: func(class string) map[string]any {
			if class == "" || class == "Wait" {
				return map[string]any{"Wait": node.NewObject("input", node.NewObject())}
			}
			return nil
		},
		Models:    func() map[string]any { return map[string]any{"vae": []string{"a.safetensors"}} },
		Log:       zerolog.Nop(),
		Heartbeat: 50 * time.Millisecond,
	}
}

// rig is a service with one fake executor and a running dispatcher.
type rig struct {
	jobs  *Jobs
	svc   *Service
	shelf *Shelf
}

// newRig starts a service on the executors (one fake if none are given) that ends with the test.
func newRig(t testing.TB, jc JobsConfig, sc ShelfConfig, executors ...Executor) *rig {
	t.Helper()
	shelf, err := NewShelf(sc)
	if err != nil {
		t.Fatal(err)
	}
	if len(executors) == 0 {
		executors = []Executor{&fake{name: "fake"}}
	}
	if jc.OnForget == nil {
		jc.OnForget = shelf.Forget
	}
	jobs := NewJobs(jc)
	cfg := fakeService()
	cfg.Jobs, cfg.Shelf, cfg.Executors, cfg.Tensors = jobs, shelf, executors, NewTensorCache(1<<20)
	svc := NewService(cfg)
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		d := Dispatcher{Jobs: jobs, Shelf: shelf, Log: zerolog.Nop()}
		d.Work(ctx, ctx, executors)
		close(done)
	}()
	t.Cleanup(func() {
		stop()
		<-done
		svc.Close()
	})
	return &rig{jobs: jobs, svc: svc, shelf: shelf}
}

// graph makes a workflow {"1": {class_type, inputs {n}}, ...} from "Wait 20", "Picture 10".
func graph(nodes ...string) *node.Object {
	o := node.NewObject()
	for i, n := range nodes {
		class, num, _ := strings.Cut(n, " ")
		in := node.NewObject()
		if num != "" {
			var v int64
			if _, err := fmt.Sscan(num, &v); err != nil {
				panic(err)
			}
			in.Set("n", v)
		}
		o.Set(fmt.Sprint(i+1), node.NewObject("class_type", class, "inputs", in))
	}
	return o
}

// workerCommand re-runs this test binary as a fake worker.
func workerCommand() *exec.Cmd {
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), "PATCHBAY_TEST_WORKER=1", "GORACE=atexit_sleep_ms=0") // the race detector waits a second at exit
	return cmd
}

// frameOf returns body as it stands on the wire.
func frameOf(body []byte) []byte {
	var b bytes.Buffer
	b.Write(binary.BigEndian.AppendUint32(nil, uint32(len(body))))
	b.Write(body)
	return b.Bytes()
}

// within is a context for one exchange of a test that takes at most d on an idle machine; a slow or busy one gets six times that.
func within(t testing.TB, d time.Duration) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 6*d)
	t.Cleanup(cancel)
	return ctx
}

func (f *fake) Sample(ctx context.Context, q *SampleRequest, emit func(*SampleReply)) (*SampleReply, error) {
	if q.Sampler.Name == "wait" {
		emit(&SampleReply{Type: SampleProgress, Step: 1, Steps: 2})
		<-ctx.Done()
		return nil, context.Cause(ctx)
	}
	if q.Sampler.Name == "die" {
		_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
		select {}
	}
	emit(&SampleReply{Type: SampleProgress, Step: 1, Steps: 1, X0: q.Latent})
	return &SampleReply{Type: SampleDone, X: q.Latent, Evals: 1, Metrics: map[string]any{"load_seconds": 0.5}}, nil
}

func (f *fake) Load(_ context.Context, q *LoadRequest) (*LoadReply, error) {
	return &LoadReply{Bytes: int64(len(q.Model.File))}, nil
}
