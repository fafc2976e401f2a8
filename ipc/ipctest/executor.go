package ipctest

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/rs/zerolog"

	"patchbay/fault"
	"patchbay/ipc/jobs"
	"patchbay/ipc/message"
	"patchbay/ipc/message/messagetest"
	"patchbay/ipc/serve"
	"patchbay/ipc/wire"
	"patchbay/node/graph"
	"patchbay/node/pyjson"
)

// Fake runs a workflow whose nodes say what happens, in order: Wait {ms}, Step {n}, Picture {bytes}, Panic, Die
// {signal}, Hang, Fail.
type Fake struct {
	Label   string
	Started chan string // receives the id of every job that starts, if not nil
}

func (f *Fake) Name() string { return f.Label }

// Ready returns at once.
func (f *Fake) Ready(ctx context.Context) error { return ctx.Err() }

// Run does what the workflow asks for.
func (f *Fake) Run(ctx context.Context, task jobs.Task, sink jobs.Sink) (*jobs.Outcome, error) {
	w, fail := message.ParseWorkflow(task.Req.Workflow)
	if fail != nil {
		return nil, fail
	}
	if f.Started != nil {
		f.Started <- task.Req.ID
	}
	sink.Event(message.Event{Type: message.EventStart, Data: map[string]any{}})
	out := &jobs.Outcome{Metrics: map[string]any{"executed": []any{}}}
	for _, id := range w.IDs() {
		sink.Event(message.Event{Type: "executing", Node: id, Data: map[string]any{"node": id}})
		n, _ := w.Input(id, "n")
		count, _ := n.(int64)
		switch w.Class(id) {
		case "Wait":
			select {
			case <-time.After(time.Duration(count) * time.Millisecond):
			case <-ctx.Done():
				return out, &fault.Error{
					Code: fault.Cancelled, Text: "stopped", Node: id, Class: "Wait",
					Extra: map[string]any{"executed": []string{"1"}},
				}
			}
		case "Step":
			for i := range count {
				sink.Event(message.Event{Type: message.EventProgress, Node: id, Data: map[string]any{"value": i + 1, "max": count}})
				if sink.Preview != nil && task.Req.Preview {
					sink.Preview(id, []byte("jpeg"))
				}
			}
		case "Picture":
			out.Files = append(out.Files, message.FileOf(messagetest.Picture(id, int(count))))
			if sink.File != nil {
				sink.File(out.Files[len(out.Files)-1])
			}
			sink.Event(message.Event{
				Type: message.EventExecuted, Node: id, Data: map[string]any{"node": id, "display_node": id},
			})
		case "Panic":
			panic("the fake panics")
		case "Die":
			// with a count, it dies the first time only
			if mark := filepath.Join(os.TempDir(), fmt.Sprintf("patchbay-died-%d-%s", os.Getppid(), task.Req.ID)); count != 0 {
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
			time.Sleep(time.Hour) // ignores ctx, like a kernel that never returns
		case "Fail":
			return out, &fault.Error{
				Code: fault.OutOfMemory, Text: "no memory", Node: id, Class: "Fail",
				Extra: map[string]any{"executed": []string{"1"}, "current_inputs": map[string]any{"n": []any{7}}},
			}
		}
	}
	return out, nil
}

// Exec answers one node.
func (f *Fake) Exec(_ context.Context, req *message.ExecRequest) (*message.ExecReply, error) {
	switch req.Class {
	case "Echo":
		v, _ := req.Inputs.Get("value")
		return &message.ExecReply{Outputs: []any{v}}, nil
	case "Sum": // touches every page
		v, _ := req.Inputs.Get("value")
		t, ok := v.(*wire.Tensor)
		if !ok {
			return nil, fault.New(fault.BadRequest, "no tensor")
		}
		sum := int64(0)
		for i := 0; i < len(t.Data); i += 4096 {
			sum += int64(t.Data[i])
		}
		return &message.ExecReply{Outputs: []any{sum, int64(len(t.Data))}}, nil
	case "Loader":
		return &message.ExecReply{Outputs: []any{pyjson.NewObject(message.HandleKey, f.Label+"-h1", "type", "MODEL")}}, nil
	}
	return nil, fault.New(fault.NoNodeType, "no class %q", req.Class)
}

func (f *Fake) Free(_ context.Context, req *message.FreeRequest) (*message.FreeReply, error) {
	return &message.FreeReply{Freed: len(req.Handles)}, nil
}

// Sample emits steps and a latent.
func (f *Fake) Sample(ctx context.Context, q *message.SampleRequest,
	emit func(*message.SampleReply),
) (*message.SampleReply, error) {
	if q.Sampler.Name == "wait" {
		emit(&message.SampleReply{Type: message.SampleProgress, Step: 1, Steps: 2})
		<-ctx.Done()
		return nil, context.Cause(ctx)
	}
	if q.Sampler.Name == "die" {
		_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
		select {}
	}
	emit(&message.SampleReply{
		Type: message.SampleProgress, Step: 1, Steps: 1, X0: q.Latent, Sent: map[string]int64{"ulysses": 12},
	})
	return &message.SampleReply{
		Type: message.SampleDone, X: q.Latent, Evals: 1,
		Metrics: map[string]any{"load_seconds": 0.5},
	}, nil
}

// Load replies with the length of the model's file name as the bytes.
func (f *Fake) Load(_ context.Context, q *message.LoadRequest) (*message.LoadReply, error) {
	return &message.LoadReply{Bytes: int64(len(q.Model.File))}, nil
}

// FakeService returns the configuration of a service that knows the classes of a Fake.
func FakeService() serve.ServiceConfig {
	classes := " Wait Step Picture Panic Die Hang Fail "
	return serve.ServiceConfig{Classes: serve.Classes{
		Validate: func(_ *message.RunRequest, w *graph.Workflow) ([]string, map[string]any, error) {
			for _, id := range w.IDs() {
				if !strings.Contains(classes, " "+w.Class(id)+" ") {
					return nil, nil, &fault.Error{
						Code:       fault.MissingNodeType,
						Text:       "Node '" + w.Class(id) + "' not found. The custom node may not be installed.",
						Details:    "Node ID '#" + id + "'",
						NodeErrors: map[string]any{id: map[string]any{"class_type": w.Class(id)}},
					}
				}
			}
			return w.IDs(), nil, nil
		},
		Describe: func(class string) map[string]any {
			if class == "" || class == "Wait" {
				return map[string]any{"Wait": pyjson.NewObject("input", pyjson.NewObject())}
			}
			return nil
		},
		Models: func() map[string]any { return map[string]any{"vae": []string{"a.safetensors"}} },
	}, Log: zerolog.Nop(), Heartbeat: 50 * time.Millisecond}
}

// WorkerCommand re-runs this test binary as the fake worker of a daemon, HostedCommand as that of another program.
func WorkerCommand() *exec.Cmd { return command("private") }

// HostedCommand is WorkerCommand for a worker that another program has started.
func HostedCommand() *exec.Cmd { return command("hosted") }

func command(kind string) *exec.Cmd {
	cmd := exec.Command(os.Args[0])
	// the race detector waits a second at exit
	cmd.Env = append(os.Environ(), "PATCHBAY_TEST_WORKER="+kind, "GORACE=atexit_sleep_ms=0")
	return cmd
}
