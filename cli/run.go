package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"patchbay/cli/console"
	"patchbay/cli/settings"
	"patchbay/cli/workflow"
	"patchbay/daemon"
	"patchbay/fault"
	"patchbay/ipc/client"
	"patchbay/ipc/message"
	"patchbay/ipc/spawn"
	"patchbay/ipc/wire"
)

type runFlags struct {
	settings.Target
	sets  []string
	plan  string
	out   string
	files string // for --local: the folder of --output, "" if that is not given
	id    string
	json  bool
	local bool
	reuse bool
	trace string
	cfg   daemon.Config // for --local
}

func runCmd() *cobra.Command {
	var f runFlags
	cmd := &cobra.Command{
		Use:   "run FILE|PICTURE|-",
		Short: "Run a workflow and save its pictures",
		Long: `run sends a workflow to the daemon, shows its progress and saves its pictures. FILE is a workflow in API
format, PICTURE one that ComfyUI or Patchbay has saved (the workflow is inside), - reads standard input. With --local
it starts a worker of its own and needs no daemon.

Exit codes: 0 done, 1 the job failed, 2 the workflow was refused, 3 no daemon, 130 cancelled with Ctrl-C (which cancels
the job too).`,
		Example: `  patchbay run flow.json
  patchbay run flow.json --set 6.text="a red fox" --set 3.seed=7 --plan ulysses=2
  cat flow.json | patchbay run - --json
  patchbay run ComfyUI_00012_.png --local --models ~/ComfyUI/models`,
		Args: console.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if given := localFlag(cmd); given != "" && !f.local {
				return console.BadInput(fmt.Errorf("--%s is for --local: a daemon has settings of its own (patchbay serve)",
					given))
			}
			if cmd.Flags().Changed("output") {
				f.files = f.cfg.Output
			}
			return runFlow(cmd, &f, args[0])
		},
	}
	fl := cmd.Flags()
	f.Add(fl)
	f.Reconnect(fl)
	fl.StringArrayVar(&f.sets, "set", nil, "replace an input: id.field=value; may be given several times")
	fl.StringVar(&f.plan, "plan", "",
		"how to split the work, as in ulysses=2,pipe=2, or ranks=4 to have it chosen (default: one rank)")
	fl.StringVar(&f.trace, "profile", "", "measure every operation: print a table and write a Chrome trace to this file")
	fl.StringVar(&f.out, "out", ".", "folder for the pictures; empty: do not save them here")
	fl.StringVar(&f.id, "id", "", "job id; running an id again shows the same job")
	fl.BoolVar(&f.reuse, "reuse", false, reuseHelp)
	fl.BoolVar(&f.json, "json", false, "print one JSON object a line for every event")
	fl.BoolVar(&f.local, "local", false, "start a worker for this job; no daemon is needed")
	settings.Folders(fl, &f.cfg)
	settings.Limits(pflag.NewFlagSet("", pflag.ContinueOnError), &f.cfg.Limits) // --local takes those of the environment
	cmd.ValidArgsFunction = flowFiles
	complete(cmd, "plan", plans)
	return cmd
}

func runFlow(cmd *cobra.Command, f *runFlags, path string) error {
	req, w, err := workflow.Read(path, cmd.InOrStdin())
	if err != nil {
		return err
	}
	if err := workflow.SetInputs(w, f.sets); err != nil {
		return err
	}
	req.Workflow = string(w.JSON())
	req.Plan = cmp.Or(f.plan, req.Plan)
	req.ID = cmp.Or(f.id, req.ID)
	req.Profile, req.Reuse = f.trace != "", f.reuse
	if err := f.checkOut(); err != nil {
		return console.BadInput(err)
	}
	c, err := f.connect(cmd)
	if err != nil {
		return err
	}
	defer console.CloseQuietly(c)
	shows := console.NewProgress(cmd.OutOrStdout(), f.json)
	defer shows.Close()
	shows.Names(w)
	if l, ok := c.(*client.Lasting); ok {
		shows.Kept = true
		l.Say = shows.Note(cmd.ErrOrStderr())
	}
	ctx, stop := cancelOnSignal(cmd.Context(), c, req.ID)
	defer stop()
	var measured console.RunStats
	col := &client.Collector{
		Accepted: shows.Accepted,
		Event:    func(ev message.Event) { measured.Take(ev); shows.Event(ev) },
		Beat:     func() { showPlace(ctx, c, req.ID, shows) },
	}
	end, err := client.Run(ctx, c, req, col)
	if l, ok := c.(*localWorker); ok {
		err = l.cause(err)
		if failure, ok := errors.AsType[*fault.Error](err); ok && failure.Public() == fault.BadWorkflow {
			for _, text := range absent(f.cfg.Models) { // which may be why
				console.Printf(cmd.ErrOrStderr(), "%s\n", text)
			}
		}
	}
	saved := f.saveOutputs(shows, col.Files)
	if err := errors.Join(shows.Finish(end, err, col.Files, f.out), saved); err != nil {
		return err
	}
	if req.Plan != "" || measured.Reused() || measured.Streamed() {
		measured.ShowWork(shows)
	}
	if f.trace == "" {
		return nil
	}
	return measured.WriteProfile(shows, f.trace)
}

// localFlag returns the name of a flag of the command line that only --local has a use for, "" if there is none.
func localFlag(cmd *cobra.Command) (name string) {
	all := pflag.NewFlagSet("", pflag.ContinueOnError)
	settings.Folders(all, &daemon.Config{})
	all.VisitAll(func(f *pflag.Flag) {
		if cmd.Flags().Changed(f.Name) {
			name = f.Name
		}
	})
	return name
}

// saveOutputs puts what SaveImage and its like have made into the folder of --output, as a daemon does. Like there,
// pictures that were finished before a job failed are saved too.
func (f *runFlags) saveOutputs(shows *console.Progress, files []message.File) error {
	if f.files == "" {
		return nil
	}
	outputs := slices.DeleteFunc(slices.Clone(files), func(f message.File) bool { return f.Ref.Type != "output" })
	return shows.Save(outputs, f.files)
}

// showPlace shows how many jobs are ahead of a job that is still queued.
func showPlace(ctx context.Context, c client.Client, job string, shows *console.Progress) {
	if !shows.Waits() {
		return
	}
	ctx, stop := context.WithTimeout(ctx, time.Second)
	defer stop()
	if rec, err := client.Status(ctx, c, job); err == nil && rec.State == message.Queued {
		shows.Ahead(rec.Position)
	}
}

// checkOut returns an error if pictures, outputs or trace cannot be written, before any work is spent on them.
func (f *runFlags) checkOut() error {
	for flag, dir := range map[string]string{"--out": f.out, "--output": f.files} {
		if dir != "" {
			if err := console.CheckFolder(dir); err != nil {
				return fmt.Errorf("%s: %w", flag, err)
			}
		}
	}
	if f.trace != "" {
		if err := console.CheckFolder(filepath.Dir(f.trace)); err != nil {
			return fmt.Errorf("--profile: %w", err)
		}
	}
	return nil
}

// connect connects to a daemon or, with --local, starts a worker process.
func (f *runFlags) connect(cmd *cobra.Command) (client.Client, error) {
	if !f.local {
		return f.DialLasting()
	}
	if f.Given() {
		return nil, console.BadInput(errors.New("--local needs no daemon: leave out --nats and --socket"))
	}
	if !cmd.Flags().Changed("log") {
		f.cfg.Log = "error" // the command itself says how the job ended
	}
	if err := cmp.Or(daemon.CheckLevel(), f.cfg.CompleteModels()); err != nil {
		return nil, err
	}
	return startLocal(&f.cfg)
}

// localWorker is the client of a worker process of its own, which ends when the client is closed.
type localWorker struct {
	*client.FrameClient
	program *spawn.Child
}

// Close closes the worker's stdin and waits for the process to exit.
func (l *localWorker) Close() error {
	err := l.FrameClient.Close()
	if <-l.program.Dead(); !l.program.Clean() {
		return errors.Join(err, l.program.Cause())
	}
	return err
}

// cause replaces the error of a broken connection with the way in which the worker process ended.
func (l *localWorker) cause(err error) error {
	var failure *fault.Error
	if err == nil || errors.As(err, &failure) || errors.Is(err, context.Canceled) {
		return err
	}
	select {
	case <-l.program.Dead():
		return l.program.Cause()
	case <-time.After(time.Second):
		return err
	}
}

func startLocal(cfg *daemon.Config) (*localWorker, error) {
	program, end, err := spawn.Start("the worker", daemon.WorkerCommand(cfg)(), 0, (*exec.Cmd).Start)
	if err != nil {
		return nil, err
	}
	conn := wire.ConnOf(end)
	return &localWorker{client.NewFrameClient(conn, conn, conn.Close), program}, nil
}

// cancelOnSignal cancels the job at the first SIGINT or SIGTERM. It cancels the returned context at the second, or if
// the job has not ended five seconds later. The caller must call the returned function.
func cancelOnSignal(parent context.Context, c client.Client, job string) (context.Context, func()) {
	ctx, giveUp := context.WithCancelCause(parent)
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM)
	done := make(chan struct{})
	go func() {
		select {
		case <-done:
			return
		case <-signals:
		}
		go func() {
			ask, stop := context.WithTimeout(ctx, 5*time.Second)
			defer stop()
			_, _, _ = client.Cancel(ask, c, job)
		}()
		select {
		case <-done:
		case <-signals:
		case <-time.After(5 * time.Second):
		}
		giveUp(console.ErrInterrupted)
	}()
	return ctx, func() {
		signal.Stop(signals)
		close(done)
		giveUp(nil)
	}
}
