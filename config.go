package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/mattn/go-isatty"
	"github.com/rs/zerolog"
	"github.com/spf13/pflag"

	"patchbay/ipc/client"
	"patchbay/ipc/wire"
	"patchbay/node/files"
	"patchbay/node/value"
)

// config is what a daemon or worker runs with: defaults, then environment, then flags. It is printed when the process starts.
type config struct {
	NATS      string        `json:"nats,omitempty"`   // external server; empty: one inside the daemon
	Listen    string        `json:"listen,omitempty"` // of the server inside
	TokenFile string        `json:"token_file,omitempty"`
	Store     string        `json:"store,omitempty"`
	Socket    string        `json:"socket,omitempty"` // "off": none
	Models    []string      `json:"models"`
	ComfyUI   string        `json:"comfyui,omitempty"`
	Input     string        `json:"input"`
	Output    string        `json:"output"`
	Temp      string        `json:"temp,omitempty"`
	Devices   string        `json:"devices"`
	Compute   string        `json:"compute"`
	Memory    string        `json:"memory,omitempty"` // of a worker; empty: nine tenths of what is available when it starts
	Workers   int           `json:"workers,omitempty"`
	Metrics   string        `json:"metrics,omitempty"` // address of /metrics and /healthz; empty: none
	Drain     time.Duration `json:"drain,omitempty"`
	Queue     string        `json:"queue,omitempty"` // durable or memory
	Sync      string        `json:"sync,omitempty"`  // always or interval
	Attempts  int           `json:"attempts,omitempty"`
	KeepJobs  int           `json:"keep_jobs,omitempty"`
	KeepFor   time.Duration `json:"keep_for,omitempty"`
	KeepFiles time.Duration `json:"keep_results,omitempty"`
	KeepBytes string        `json:"keep_bytes,omitempty"`
	Replicas  int           `json:"replicas,omitempty"`
	Log       string        `json:"log"`

	Bounds bounds `json:"limits"`

	UsersFile   string `json:"users_file,omitempty"`
	Permissions string `json:"-"` // of --print-permissions
	access      wire.Access
}

// The values of --queue and --sync.
const (
	queueDurable = "durable"
	queueMemory  = "memory"
	syncAlways   = "always"
	syncInterval = "interval"
)

// addJobs adds the flags that say how jobs are kept.
func (c *config) addJobs(f *pflag.FlagSet) {
	f.StringVar(&c.Queue, "queue", queueDurable, "durable: jobs are kept in JetStream and outlive the daemon; memory: they do not")
	f.StringVar(&c.Sync, "sync", syncAlways, "when the server inside waits for the disk: always, or at an interval of two minutes (a power failure may lose that)")
	f.IntVar(&c.Attempts, "attempts", 3, "how often a job is started whose worker dies")
	f.IntVar(&c.KeepJobs, "keep-jobs", 1000, "how many ended jobs are remembered")
	f.DurationVar(&c.KeepFor, "keep-for", 7*24*time.Hour, "how long ended jobs are remembered; 0: only by number")
	f.DurationVar(&c.KeepFiles, "keep-results", 0, "remove the files of ended jobs after this long, from the output folder too; 0: never")
	f.StringVar(&c.KeepBytes, "keep-bytes", "", "remove the files of the oldest jobs, from the output folder too, when all have more bytes, as in 20G (default: never)")
	f.IntVar(&c.Replicas, "replicas", 1, "copies of every stream, on a NATS cluster")
}

func (c *config) checkJobs() error {
	bad := func(format string, args ...any) error { return &exitError{exitBadInput, fmt.Errorf(format, args...)} }
	if _, err := parseBytes(c.KeepBytes); err != nil {
		return bad("--keep-bytes %w", err)
	}
	switch {
	case c.Queue != queueDurable && c.Queue != queueMemory:
		return bad("--queue %s: want durable or memory", c.Queue)
	case c.Sync != syncAlways && c.Sync != syncInterval:
		return bad("--sync %s: want always or interval", c.Sync)
	case c.Attempts < 1 || c.Attempts > 100:
		return bad("--attempts %d: want 1 to 100", c.Attempts)
	case c.KeepJobs < 1 || c.KeepJobs > 100000:
		return bad("--keep-jobs %d: want 1 to 100000", c.KeepJobs)
	case c.KeepFiles < 0:
		return bad("--keep-results %s: want 0 or more", c.KeepFiles)
	case c.KeepFor < 0:
		return bad("--keep-for %s: want 0 or more", c.KeepFor)
	case c.Replicas < 1 || c.Replicas > 5:
		return bad("--replicas %d: want 1 to 5", c.Replicas)
	}
	return nil
}

// home is the folder for everything that has no other place.
func home() string {
	if h := os.Getenv("PATCHBAY_HOME"); h != "" {
		return h
	}
	dir, err := os.UserHomeDir()
	if err != nil {
		dir = os.TempDir()
	}
	return filepath.Join(dir, ".local", "share", "patchbay")
}

// defaultSocket is where the daemon listens and clients look.
func defaultSocket() string {
	if s := os.Getenv("PATCHBAY_SOCKET"); s != "" {
		return s
	}
	if d := os.Getenv("XDG_RUNTIME_DIR"); d != "" {
		return filepath.Join(d, "patchbay.sock")
	}
	return filepath.Join(home(), "patchbay.sock")
}

// addFolders adds the flags that say where files are.
func (c *config) addFolders(f *pflag.FlagSet) {
	f.StringArrayVar(&c.Models, "models", nil, "folder laid out like ComfyUI's models folder; may be given several times")
	f.StringVar(&c.ComfyUI, "comfyui", "", "ComfyUI folder: its models, input and output folders are used")
	f.StringVar(&c.Input, "input", "", "folder of pictures for LoadImage")
	f.StringVar(&c.Output, "output", "", "folder that SaveImage writes into")
	f.StringVar(&c.Devices, "devices", "cpu", "what to compute on: cpu, or a file of `patchbay bench step --save`: the cpu with the rates measured there")
	f.StringVar(&c.Compute, "compute", string(value.ComputeAuto), "type of the denoise loop's activations: f32, bf16, or auto: bf16 where the processor multiplies it and the file holds it")
	f.StringVar(&c.Memory, "memory", "", "memory that weights, pictures and buffers may take, as in 12G (default: nine tenths of what is available)")
	f.StringVar(&c.Log, "log", "info", "least level of log lines: debug, info, warn, error")
}

// complete fills in defaults and checks what flags said.
func (c *config) complete() error {
	if len(c.Models) == 0 && c.ComfyUI == "" {
		c.Models = filepath.SplitList(os.Getenv("PATCHBAY_MODELS"))
		if len(c.Models) == 0 {
			c.Models = []string{filepath.Join(home(), "models")}
		}
	}
	if c.ComfyUI != "" {
		if _, err := os.Stat(filepath.Join(c.ComfyUI, "models")); err != nil {
			return &exitError{exitBadInput, fmt.Errorf("--comfyui %s: there is no models folder in it", c.ComfyUI)}
		}
		if own := filepath.Join(c.ComfyUI, "models"); !slices.Contains(c.Models, own) { // a worker is given both
			c.Models = append(c.Models, own)
		}
		c.Input, c.Output = orElse(c.Input, filepath.Join(c.ComfyUI, "input")), orElse(c.Output, filepath.Join(c.ComfyUI, "output"))
	}
	c.Input, c.Output = orElse(c.Input, filepath.Join(home(), "input")), orElse(c.Output, filepath.Join(home(), "output"))
	if m, err := c.machine(); err != nil {
		return &exitError{exitBadInput, err}
	} else if m != nil { // a worker may start elsewhere
		c.Devices, _ = filepath.Abs(c.Devices)
	}
	if _, err := value.ParseCompute(orElse(c.Compute, string(value.ComputeAuto))); err != nil {
		return &exitError{exitBadInput, fmt.Errorf("--compute %w", err)}
	}
	if _, err := parseBytes(c.Memory); err != nil {
		return &exitError{exitBadInput, fmt.Errorf("--memory %w", err)}
	}
	if _, err := zerolog.ParseLevel(c.Log); err != nil {
		return &exitError{exitBadInput, fmt.Errorf("--log %s: want debug, info, warn or error", c.Log)}
	}
	for _, p := range append([]*string{&c.ComfyUI, &c.Input, &c.Output, &c.Temp, &c.Store}, pointers(c.Models)...) {
		if *p == "" {
			continue
		}
		abs, err := filepath.Abs(*p)
		if err != nil {
			return fmt.Errorf("folder %s: %w", *p, err)
		}
		*p = abs
	}
	return nil
}

func pointers(s []string) []*string {
	out := make([]*string, len(s))
	for i := range s {
		out[i] = &s[i]
	}
	return out
}

func orElse(v, preset string) string {
	if v == "" {
		return preset
	}
	return v
}

// roots returns the folders as package node takes them.
func (c *config) roots() files.Roots {
	return files.Roots{Models: c.Models, Input: c.Input, Output: c.Output, Temp: c.Temp, ComfyUI: c.ComfyUI}
}

// workerArgs is the command line of a worker with the same folders.
func (c *config) workerArgs() []string {
	args := []string{"worker", "--input", c.Input, "--output", c.Output, "--save=false", "--devices", c.Devices, "--compute", orElse(c.Compute, string(value.ComputeAuto)), "--log", c.Log}
	for _, m := range c.Models {
		args = append(args, "--models", m)
	}
	if c.ComfyUI != "" {
		args = append(args, "--comfyui", c.ComfyUI)
	}
	args = append(args, c.Bounds.workerArgs()...)
	if c.Memory != "" {
		args = append(args, "--memory", c.Memory)
	}
	return args
}

// logger writes to stderr: for people on a terminal, JSON lines elsewhere.
func (c *config) logger(errs io.Writer) zerolog.Logger {
	level, err := zerolog.ParseLevel(c.Log)
	if err != nil {
		level = zerolog.InfoLevel
	}
	w := errs
	if isTerminal(errs) {
		w = zerolog.ConsoleWriter{Out: errs, TimeFormat: time.TimeOnly}
	}
	return zerolog.New(w).Level(level).With().Timestamp().Logger()
}

// isTerminal tells whether w is one.
func isTerminal(w any) bool {
	f, ok := w.(*os.File)
	return ok && isatty.IsTerminal(f.Fd())
}

// target says which daemon a client command talks to.
type target struct {
	nats, socket string
	access       wire.Access
}

func (t *target) add(f *pflag.FlagSet) {
	f.StringVar(&t.nats, "nats", "", "URL of the daemon's NATS server (default $PATCHBAY_NATS_URL or "+wire.DefaultNATS+")")
	f.StringVar(&t.socket, "socket", "", "unix socket of the daemon")
	addAccess(f, &t.access)
}

// given tells whether the command line names a daemon.
func (t *target) given() bool { return t.nats != "" || t.socket != "" }

// dial connects to the daemon that flags or environment name; without any, to the default NATS address, or else to the default socket.
func (t *target) dial() (client.Client, error) {
	if t.nats != "" && t.socket != "" {
		return nil, &exitError{exitBadInput, errors.New("--nats and --socket exclude each other")}
	}
	if err := t.access.Check(); err != nil {
		return nil, &exitError{exitBadInput, err}
	}
	nats, socket := t.nats, t.socket
	if nats == "" && socket == "" {
		nats, socket = os.Getenv("PATCHBAY_NATS_URL"), os.Getenv("PATCHBAY_SOCKET")
	}
	switch {
	case t.nats != "" || nats != "" && t.socket == "":
		return t.dialNATS(nats)
	case socket != "":
		return dialSocket(socket)
	}
	c, err := t.dialNATS(wire.DefaultNATS)
	if err == nil {
		return c, nil
	}
	if s, socketErr := dialSocket(defaultSocket()); socketErr == nil {
		return s, nil
	}
	return nil, fmt.Errorf("%w (start one with `patchbay serve`, or name one with --nats or --socket; `patchbay run --local` needs none)", err)
}

func (t *target) dialNATS(url string) (client.Client, error) {
	c, err := client.DialNATSAs(url, t.access)
	if err != nil {
		return nil, err
	}
	return c, nil
}

func dialSocket(path string) (client.Client, error) {
	c, err := client.DialSocket(path)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", client.ErrNoDaemon, err)
	}
	return c, nil
}

// asking is the time that one question to a daemon may take.
func asking(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, 15*time.Second)
}
