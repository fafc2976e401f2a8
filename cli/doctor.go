package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"patchbay/cli/console"
	"patchbay/cli/plan"
	"patchbay/cli/settings"
	"patchbay/cli/workflow"
	"patchbay/daemon"
	"patchbay/engine"
	"patchbay/engine/cuda"
	"patchbay/engine/cuda/library"
	"patchbay/ipc/client"
	"patchbay/ipc/message"
	"patchbay/node/files"
	"patchbay/node/media"
)

func doctorCmd(version string) *cobra.Command {
	var t settings.Target
	var cfg daemon.Config
	var templates string
	cmd := &cobra.Command{
		Use:   "doctor [FILE|PICTURE|-]",
		Short: "Check this machine, the folders, the daemon, or all that a workflow needs",
		Long: `doctor looks at the machine, at the header of every model file, and at the daemon. With a workflow it says all
that is missing for it at once: node classes, model files and tokenizers, where each was looked for, and where the
workflow has it from. Files are looked for in the folders of --models and --comfyui; without these a daemon that answers
is asked what it has, and if there is none, those of PATCHBAY_MODELS are searched. With --templates it checks every
template of a folder. It changes nothing. Exit code 1 if something is wrong.`,
		Example: `  patchbay doctor --comfyui ~/ComfyUI
  patchbay doctor flow.json --models ~/ComfyUI/models
  patchbay doctor --templates examples/templates`,
		Args: console.Args(cobra.MaximumNArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := cfg.Complete(); err != nil {
				return err
			}
			s, err := findStock(cmd, &t, &cfg)
			if err != nil {
				return err
			}
			var list []check
			if templates != "" {
				if len(args) == 1 {
					return console.BadInput(errors.New("--templates checks a folder: leave out the workflow"))
				}
				list = templateChecks(templates, s)
			} else if len(args) == 1 {
				req, w, err := workflow.ReadWhole(args[0], cmd.InOrStdin())
				if err != nil {
					return err
				}
				list = flowChecks(w, nil, workflow.Sources(req), s)
			} else {
				list = checks(cmd, &t, &cfg, s, version)
			}
			bad := 0
			for _, c := range list {
				console.Printf(cmd.OutOrStdout(), "%-5s %-8s %s\n", c.state, c.what, c.text)
				if c.state == "wrong" {
					bad++
				}
			}
			if bad > 0 {
				return console.Exit(console.ExitFailed, nil)
			}
			return nil
		},
	}
	cmd.ValidArgsFunction = flowFiles
	t.Add(cmd.Flags())
	settings.Folders(cmd.Flags(), &cfg)
	cmd.Flags().StringVar(&templates, "templates", "", "check the templates in this folder (serve --templates)")
	return cmd
}

// check is one line of doctor's output; state is "ok", "note" or "wrong".
type check struct{ state, what, text string }

func checks(cmd *cobra.Command, t *settings.Target, cfg *daemon.Config, s *stock, version string) []check {
	out := []check{
		{"ok", "program", version + ", " + runtime.GOOS + "/" + runtime.GOARCH},
		{"ok", "cpu", fmt.Sprintf("%d processors, %s", runtime.GOMAXPROCS(0), strings.Join(daemon.CPULevels(), " "))},
	}
	if _, err := daemon.NewOps(0, 1); err != nil {
		out = append(out, check{"wrong", "cpu", err.Error()})
	}
	out = append(out, gpuChecks(cfg)...)
	out = append(out, ffmpegCheck(cmd.Context()))
	out = append(out, s.fileChecks(cfg)...)
	if dir, err := workflow.Examples(); err == nil {
		out = append(out, check{"ok", "demo", dir})
	} else {
		out = append(out, check{"note", "demo", err.Error()})
	}
	out = append(out, folderCheck("output", cfg.Output), folderCheck("store", filepath.Join(daemon.Home(), "store")))
	return append(out, daemonCheck(cmd, t)...)
}

// ffmpegCheck reports on ffmpeg, which reads and writes videos and sounds.
func ffmpegCheck(ctx context.Context) check {
	const use = "videos and sounds as files, animated WebP"
	lack := media.Lack()
	if lack == "" {
		version, err := media.Version(ctx)
		if err == nil {
			return check{"ok", "ffmpeg", version + ": " + use}
		}
		lack = err.Error()
	}
	return check{"note", "ffmpeg", lack + "; without it there are no " + use}
}

// absent says which models folders are not there, and how to name others.
func absent(folders []string) (out []string) {
	for _, m := range folders {
		if _, err := os.Stat(m); err != nil {
			out = append(out, m+" is not there; give --models, --comfyui or PATCHBAY_MODELS")
		}
	}
	return out
}

// fileChecks counts the model files of every kind and, in folders of this machine, reads their headers.
func (s *stock) fileChecks(cfg *daemon.Config) (out []check) {
	where := ""
	if s.daemon != "" {
		where = ", " + s.daemon + " says"
	} else {
		for _, text := range absent(cfg.Models) {
			out = append(out, check{"note", "models", text})
		}
	}
	found := 0
	for _, kind := range files.Kinds() {
		names := s.roots.List(kind)
		found += len(names)
		out = append(out, check{"ok", "models", fmt.Sprintf("files of %s: %d%s", kind, len(names), where)})
		if s.daemon != "" {
			continue
		}
		for _, name := range names {
			if why := unreadable(&s.roots, kind, name); why != "" {
				out = append(out, check{"wrong", "models", kind + "/" + name + ": " + why})
			} else if kind == files.KindDiffusion || kind == files.KindCheckpoint {
				out = append(out, s.roomChecks(cfg, kind, name)...)
			}
		}
	}
	if found == 0 {
		out = append(out, check{"note", "models", "no model files; the demo brings its own (patchbay demo)"})
	}
	return out
}

// roomChecks says what a job with a model would bring from host memory on this machine, and what that costs. It is
// silent about models that fit.
func (s *stock) roomChecks(cfg *daemon.Config, kind, name string) []check {
	path, err := s.roots.Resolve(kind, "file", name)
	if err != nil {
		return nil // found unreadable elsewhere
	}
	memory, err := cfg.HostMemory()
	if err != nil {
		return []check{{"wrong", "memory", "--memory " + err.Error()}}
	}
	f := plan.Flags{
		Model: path, Size: "1024x1024", Devices: "cpu", HostMemory: strconv.FormatInt(memory, 10), Batch: 1, Warmup: 1,
	}
	if list, _ := daemon.GPUs(cfg.Devices); len(list) > 0 {
		f.Devices = fmt.Sprintf("cuda:%d", list[0])
	}
	text := kind + "/" + name + ": "
	search, err := f.Search()
	if err != nil {
		return nil // a checkpoint need not hold a diffusion model
	}
	choice, err := search.Auto()
	if err != nil {
		return []check{{"note", "memory", text + plain(err)}}
	}
	if b := choice.Streams; b.Blocks > 0 {
		return []check{{"note", "memory", fmt.Sprintf("%s%d of %d blocks come from host memory, %s a step: %.2f times the "+
			"time of blocks that all stay, for a picture of 1024 px", text, b.Blocks, b.Blocks+b.Resident,
			console.Size(float64(b.StepBytes)), b.Slowdown)}}
	}
	return nil
}

// gpuChecks reports on the NVIDIA driver, every GPU and, if a GPU is usable, NVIDIA's libraries. It opens every GPU for
// a moment.
func gpuChecks(cfg *daemon.Config) []check {
	driver, err := cuda.Open(cfg.Libraries().Named()...)
	if err != nil {
		return []check{{"note", "gpu", fmt.Sprintf("%v: everything runs on the processors; GPUs need the NVIDIA driver 550 "+
			"or newer, and nothing else", err)}}
	}
	out := []check{{"ok", "driver", fmt.Sprintf("%s, CUDA %d.%d", driver.Path(), driver.Version()/1000,
		driver.Version()%1000/10)}}
	list, err := driver.Devices()
	if err != nil {
		return append(out, check{"wrong", "gpu", err.Error()})
	}
	var usable []string
	for i := range list {
		if err := driver.Refusal(&list[i]); err != nil {
			out = append(out, check{"note", "gpu", err.Error() + ": it is not used"})
			continue
		}
		usable = append(usable, list[i].Location())
		out = append(out, check{"ok", "gpu", fmt.Sprintf("%s, %s, compute capability %d.%d, %d MiB; use it with --devices %s",
			list[i].Location(), list[i].Name, list[i].Major, list[i].Minor, list[i].Memory>>20, list[i].Location())})
	}
	for i := range list {
		if slices.Contains(usable, list[i].Location()) {
			out = append(out, kernelCheck(driver, &list[i]))
		}
	}
	if len(usable) > 0 {
		out = append(out, libraryChecks(driver, cfg)...)
	}
	if len(usable) > 1 {
		out = append(out, check{"ok", "gpu", fmt.Sprintf("%d ranks of a plan have a GPU each with --devices %s", len(usable),
			strings.Join(usable, ","))})
	}
	return out
}

// kernelCheck loads the kernels into a GPU and says how that went.
func kernelCheck(driver *cuda.Driver, info *cuda.Info) check {
	device, err := driver.Device(info.Index)
	switch {
	case errors.Is(err, engine.ErrOutOfMemory):
		return check{"note", "kernels", err.Error() + ": other programs use the GPU's memory"}
	case err != nil:
		return check{"wrong", "kernels", err.Error()}
	}
	loaded := *device.Loaded()
	if err := device.Close(); err != nil {
		return check{"wrong", "kernels", info.Location() + ": " + err.Error()}
	}
	state := "ok"
	if loaded.Refused != nil {
		state = "note"
	}
	return check{state, "kernels", info.Location() + ": " + loaded.String()}
}

// libraryChecks reports on every optional NVIDIA library: its path and version, or where it was looked for, what its
// absence costs, and the command that installs it.
func libraryChecks(driver *cuda.Driver, cfg *daemon.Config) []check {
	search := cfg.Libraries()
	var out []check
	for _, l := range library.All() {
		found := driver.Library(search, l)
		looked := search.Looked(l)
		switch {
		case found.Path != "":
			out = append(out, check{"ok", "library", fmt.Sprintf("%s %s, %s: %s", l.Name, found.Version, found.Path, l.Use)})
			continue
		case looked == nil:
			out = append(out, check{"note", "library", fmt.Sprintf("%s is switched off (--cuda-libs off): %s", l.Name, l.Lack)})
			continue
		}
		why := "is not in " + strings.Join(looked, ", ")
		if found.Err != nil {
			why = "cannot be used: " + found.Err.Error()
		}
		out = append(out, check{"note", "library", fmt.Sprintf("%s %s: %s; it comes with: %s", l.Name, why, l.Lack, l.Pip)})
	}
	return out
}

// folderCheck reports whether a folder, or the nearest existing one above it, is writable, and its free space.
func folderCheck(what, dir string) check {
	have := console.Nearest(dir)
	if err := unix.Access(have, unix.W_OK); err != nil {
		return check{"wrong", what, fmt.Sprintf("%s cannot be written: %v", have, err)}
	}
	var st unix.Statfs_t
	if err := unix.Statfs(have, &st); err != nil {
		return check{"note", what, fmt.Sprintf("%s: %v", have, err)}
	}
	free := st.Bavail * uint64(st.Bsize) >> 20
	state := "ok"
	if free < 100 {
		state = "wrong"
	}
	return check{state, what, fmt.Sprintf("%s, %d MiB free", dir, free)}
}

// storeChecks reports on the job stores of the daemons that answer: how full each one is, and what it has lost.
func storeChecks(ctx context.Context, c client.Client) []check {
	all, err := client.AllStats(ctx, c)
	if err != nil {
		return []check{{"note", "jobs", err.Error()}}
	}
	var out []check
	for _, d := range all {
		s := d.Store
		if s == nil {
			out = append(out, check{"note", "jobs", "daemon " + d.Daemon + " keeps them in memory only"})
			continue
		}
		used := check{"ok", "jobs", fmt.Sprintf("store of daemon %s: %s used, limit not known", d.Daemon,
			console.Size(float64(s.Bytes)))}
		if s.Limit > 0 {
			used.text = fmt.Sprintf("store of daemon %s: %s of %s used, %s left for new jobs, %s kept for the ends of those "+
				"that are there", d.Daemon, console.Size(float64(s.Bytes)), console.Size(float64(s.Limit)),
				console.Size(float64(max(0, s.Limit-s.Head-s.Bytes))), console.Size(float64(s.Head)))
		}
		if s.Full {
			used.state, used.text = "wrong", used.text+"; it is full and takes no new jobs"
		}
		if s.Copies > 1 {
			used.text += fmt.Sprintf("; %d copies", s.Copies)
		}
		out = append(out, used)
		for _, text := range s.Trouble {
			out = append(out, check{"wrong", "jobs", "store of daemon " + d.Daemon + ": " + text})
		}
		if s.Restored > 0 {
			out = append(out, check{"wrong", "jobs", fmt.Sprintf("the NATS server of daemon %s had lost the records of %d jobs "+
				"that it had acknowledged; the daemon has written them again. Does it wait for the disk (sync_interval: always)?",
				d.Daemon, s.Restored)})
		}
		if s.Lost > 0 {
			out = append(out, check{"wrong", "jobs", fmt.Sprintf("daemon %s started without the records of %d jobs, the files "+
				"of its store are damaged: %s", d.Daemon, s.Lost, strings.Join(s.LostJobs, ", "))})
		}
		for _, text := range s.Damaged {
			out = append(out, check{"wrong", "jobs", "the NATS server of daemon " + d.Daemon + " has lost " + text})
		}
	}
	return out
}

func daemonCheck(cmd *cobra.Command, t *settings.Target) []check {
	c, err := t.Dial()
	if err != nil {
		return []check{{"note", "daemon", err.Error()}}
	}
	defer console.CloseQuietly(c)
	ctx, stop := asking(cmd.Context())
	defer stop()
	_, counts, err := client.List(ctx, c, "", 1)
	if err != nil {
		return []check{{"note", "daemon", err.Error()}}
	}
	out := []check{{"ok", "daemon", fmt.Sprintf("answers; %d jobs queued, %d running", counts[message.Queued],
		counts[message.Running])}}
	out = append(out, storeChecks(ctx, c)...)
	b, err := client.LimitsOf(ctx, c)
	if err != nil {
		return append(out, check{"note", "limits", err.Error()})
	}
	anyOf := func(n int64, what string) string {
		if n == 0 {
			return "any number of " + what
		}
		return fmt.Sprintf("%d %s", n, what)
	}
	return append(out, check{"ok", "limits", fmt.Sprintf(
		"messages of %s on NATS and %s elsewhere, %d levels deep; %d waiting jobs, %s; %s, %d steps",
		console.Size(float64(b.MessageBytes)), console.Size(float64(b.FrameBytes)), b.Depth, b.Queue,
		anyOf(int64(b.ClientJobs), "jobs a client"), anyOf(b.Pixels, "pixels"), b.Steps)})
}
