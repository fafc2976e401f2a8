package daemon

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/rs/zerolog"

	"patchbay/ipc/wire"
	"patchbay/node/files"
	"patchbay/node/value"
)

// InputError is a setting that is refused before anything is started.
type InputError = wire.InputError

// refuse returns an *InputError.
func refuse(format string, args ...any) error { return &InputError{Err: fmt.Errorf(format, args...)} }

// Config is the configuration of a daemon or worker: defaults, then environment, then flags. It is logged when the
// process starts.
type Config struct {
	NATS      string   `json:"nats,omitempty"`   // external server; empty: one embedded in the daemon
	Listen    string   `json:"listen,omitempty"` // of the embedded server
	TokenFile string   `json:"token_file,omitempty"`
	Store     string   `json:"store,omitempty"`
	Socket    string   `json:"socket,omitempty"` // "off": none
	Models    []string `json:"models"`
	ComfyUI   string   `json:"comfyui,omitempty"`
	Input     string   `json:"input"`
	Output    string   `json:"output"`
	Temp      string   `json:"temp,omitempty"`
	Devices   string   `json:"devices"`
	Rates     string   `json:"rates,omitempty"`
	Compute   string   `json:"compute"`
	Memory    string   `json:"memory,omitempty"` // of a worker; empty: nine tenths of what is free
	// FreeAfter is how long a worker without requests keeps models and caches; 0: forever.
	FreeAfter time.Duration `json:"free_after,omitempty"`
	// DeviceMemory bounds weights and buffers on a GPU; empty: all that is free there, less Reserve, which is left to
	// others.
	DeviceMemory string `json:"device_memory,omitempty"`
	Reserve      string `json:"reserve,omitempty"`
	Placement    string `json:"placement,omitempty"` // of ranks: threads or children; empty: threads
	Transport    string `json:"transport,omitempty"` // of ranks on GPUs: auto, local or nccl; empty: auto
	Schedule     string `json:"schedule,omitempty"`  // of waiting jobs: one, auto or each; empty: one
	Ranks        int    `json:"ranks,omitempty"`     // places on the processors; 0: one, for plans of any size
	Hosts        string `json:"hosts,omitempty"`     // HOST:PORT,... or @FILE: where ranks run; empty: here
	ClusterKey   string `json:"cluster_key,omitempty"`
	Version      string `json:"-"`                   // of the program
	Private      bool   `json:"private,omitempty"`   // a worker: of a daemon, which has validated what it sends
	CUDALibs     string `json:"cuda_libs,omitempty"` // folders of NVIDIA's libraries, see package library
	Graphs       string `json:"graphs,omitempty"`    // evaluations as CUDA graphs: on or off; empty: on
	// Deterministic adds deterministic=on to every plan, and restricts GPUs to our own kernels.
	Deterministic bool `json:"deterministic,omitempty"`
	// TrustedNetwork allows GPUs of several machines to exchange data by NCCL, which neither encrypts nor
	// authenticates.
	TrustedNetwork bool `json:"trusted_network,omitempty"`
	// Patience is how long all ranks of a request may make no progress; 0: ten minutes.
	Patience time.Duration `json:"patience,omitempty"`

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

	StrictLinks bool        `json:"strict_links,omitempty"`
	Extra       files.Extra `json:"extra_models,omitzero"` // from the ComfyUI tree

	Limits Limits `json:"limits"`

	UsersFile string      `json:"users_file,omitempty"`
	Access    wire.Access `json:"-"`
}

// The values of --queue and --sync.
const (
	QueueDurable = "durable"
	queueMemory  = "memory"
	SyncAlways   = "always"
	syncInterval = "interval"
)

func (c *Config) checkJobs() error {
	if _, err := ParseBytes(c.KeepBytes); err != nil {
		return refuse("--keep-bytes %w", err)
	}
	switch {
	case c.Queue != QueueDurable && c.Queue != queueMemory:
		return refuse("--queue %s: want durable or memory", c.Queue)
	case c.Sync != SyncAlways && c.Sync != syncInterval:
		return refuse("--sync %s: want always or interval", c.Sync)
	case c.Attempts < 1 || c.Attempts > 100:
		return refuse("--attempts %d: want 1 to 100", c.Attempts)
	case c.KeepJobs < 1 || c.KeepJobs > 100000:
		return refuse("--keep-jobs %d: want 1 to 100000", c.KeepJobs)
	case c.KeepFiles < 0:
		return refuse("--keep-results %s: want 0 or more", c.KeepFiles)
	case c.KeepFor < 0:
		return refuse("--keep-for %s: want 0 or more", c.KeepFor)
	case c.Replicas < 0 || c.Replicas > 5:
		return refuse("--replicas %d: want 1 to 5, or 0 for as many as fit the NATS server", c.Replicas)
	case c.Replicas > 1 && c.NATS == "":
		return refuse("--replicas %d: the NATS server inside is alone; name a cluster with --nats URL,URL,URL", c.Replicas)
	}
	return nil
}

// Home returns the folder for everything that no setting places elsewhere.
func Home() string {
	if h := os.Getenv("PATCHBAY_HOME"); h != "" {
		return h
	}
	dir, err := os.UserHomeDir()
	if err != nil {
		dir = os.TempDir()
	}
	return filepath.Join(dir, ".local", "share", "patchbay")
}

// DefaultSocket returns the path where the daemon listens and clients connect by default.
func DefaultSocket() string {
	if s := os.Getenv("PATCHBAY_SOCKET"); s != "" {
		return s
	}
	if d := os.Getenv("XDG_RUNTIME_DIR"); d != "" {
		return filepath.Join(d, "patchbay.sock")
	}
	return filepath.Join(Home(), "patchbay.sock")
}

// CompleteDaemon fills in the defaults of a daemon and checks all its settings. It returns an *InputError for settings
// that are refused.
func (c *Config) CompleteDaemon() error {
	if err := c.checkAccess(); err != nil {
		return err
	}
	c.Store = cmp.Or(c.Store, filepath.Join(Home(), "store"))
	c.Socket = cmp.Or(c.Socket, DefaultSocket())
	c.Temp = filepath.Join(c.Store, "temp")
	if err := c.checkJobs(); err != nil {
		return err
	}
	if _, err := c.Limits.Check(); err != nil {
		return err
	}
	if c.Workers < 1 || c.Workers > 64 {
		return refuse("--workers %d: want 1 to 64", c.Workers)
	}
	if err := c.CompleteModels(); err != nil {
		return err
	}
	if list, _ := GPUs(c.Devices); list != nil && c.Workers > 1 {
		return refuse("--workers %d --devices %s: one worker uses a GPU", c.Workers, c.Devices)
	}
	return CheckLevel()
}

// Complete fills in the defaults of folders and devices, makes paths absolute, and checks the flags. It returns an
// *InputError for settings that are refused.
func (c *Config) Complete() error {
	if len(c.Models) == 0 && c.ComfyUI == "" {
		c.Models = filepath.SplitList(os.Getenv("PATCHBAY_MODELS"))
		if len(c.Models) == 0 {
			c.Models = []string{filepath.Join(Home(), "models")}
		}
	}
	if c.ComfyUI != "" {
		if _, err := os.Stat(filepath.Join(c.ComfyUI, "models")); err != nil {
			return refuse("--comfyui %s: there is no models folder in it", c.ComfyUI)
		}
		if own := filepath.Join(c.ComfyUI, "models"); !slices.Contains(c.Models, own) { // a worker is given both
			c.Models = append(c.Models, own)
		}
		var err error
		if c.Extra, err = files.ReadExtra(c.ComfyUI); err != nil {
			return refuse("--comfyui: %w", err)
		}
		c.Input = cmp.Or(c.Input, filepath.Join(c.ComfyUI, "input"))
		c.Output = cmp.Or(c.Output, filepath.Join(c.ComfyUI, "output"))
	}
	c.Input, c.Output = cmp.Or(c.Input, filepath.Join(Home(), "input")), cmp.Or(c.Output, filepath.Join(Home(), "output"))
	if err := c.CheckDevices(); err != nil {
		return err
	}
	if err := errors.Join(c.checkHosts(), c.checkSchedule()); err != nil {
		return &InputError{Err: err}
	}
	if _, err := value.ParseCompute(cmp.Or(c.Compute, string(value.ComputeAuto))); err != nil {
		return refuse("--compute %w", err)
	}
	n, err := ParseBytes(c.Memory)
	switch {
	case err != nil:
		return refuse("--memory %w", err)
	case n > 0 && n < leastMemory:
		return refuse("--memory %s: want %dM or more, which a worker needs to begin", c.Memory, leastMemory>>20)
	case c.FreeAfter < 0:
		return refuse("--free-after %s: want 0 or more", c.FreeAfter)
	}
	if err := checkAddresses(addressSpace(), n); err != nil {
		return &InputError{Err: err}
	}
	if _, err := zerolog.ParseLevel(c.Log); err != nil {
		return refuse("--log %s: want debug, info, warn or error", c.Log)
	}
	paths := []*string{&c.ComfyUI, &c.Input, &c.Output, &c.Temp, &c.Store, &c.ClusterKey}
	for i := range c.Models {
		paths = append(paths, &c.Models[i])
	}
	for _, p := range paths {
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

// CompleteModels is Complete, and returns an *InputError for models folders that were named but do not exist. The
// default folder may be created later.
func (c *Config) CompleteModels() error {
	if err := c.Complete(); err != nil {
		return err
	}
	for _, m := range c.Models {
		info, err := os.Stat(m)
		switch {
		case err == nil && info.IsDir() || m == filepath.Join(Home(), "models"):
		case err == nil:
			return refuse("--models %s: it is no folder", m)
		default:
			return refuse("--models (or PATCHBAY_MODELS): %w", err)
		}
	}
	return nil
}

// CheckDevices returns an *InputError for --devices that do not exist or are too old, and for wrong values of the other
// device flags. It resolves auto in --devices and makes the path of --rates absolute.
func (c *Config) CheckDevices() error {
	c.Devices = c.resolvedDevices()
	_, _, driver, infos, err := c.ratedGPUs()
	if err == nil {
		_, err = c.nccl(driver, infos)
	}
	if err == nil {
		_, _, err = c.deviceMemory()
	}
	switch {
	case err != nil:
		return &InputError{Err: err}
	case !slices.Contains([]string{"", PlacementThreads, placementChildren}, c.Placement):
		return refuse("--placement %s: want threads or children", c.Placement)
	case !slices.Contains([]string{"", GraphsOn, graphsOff}, c.Graphs):
		return refuse("--graphs %s: want on or off", c.Graphs)
	case c.Patience != 0 && c.Patience < time.Second:
		return refuse("--patience %s: want 1s or more, longer than the longest operation", c.Patience)
	case c.Rates != "":
		c.Rates, _ = filepath.Abs(c.Rates) // a worker may start elsewhere
	}
	return nil
}

// Roots returns the folders in the form that package node takes.
func (c *Config) Roots() files.Roots {
	return files.Roots{
		Models: c.Models, Input: c.Input, Output: c.Output, Temp: c.Temp, ComfyUI: c.ComfyUI,
		Extra: c.Extra, StrictLinks: c.StrictLinks,
	}
}

// argument returns the settings as one JSON value: --config of a process that this one starts.
func (c *Config) argument() string {
	b, err := json.Marshal(c)
	if err != nil { // it has only strings, numbers and lists of them
		panic("daemon: " + err.Error())
	}
	return string(b)
}

// Inherit replaces all settings but the version by those of the process that started this one, which has completed and
// checked them: text is the value of --config.
func (c *Config) Inherit(text string) error {
	own := Config{Version: c.Version}
	d := json.NewDecoder(strings.NewReader(text))
	d.DisallowUnknownFields()
	if err := d.Decode(&own); err != nil {
		return refuse("--config is for processes that patchbay itself starts: %w", err)
	}
	*c = own
	return nil
}

// forWorker returns the settings of a worker. The daemon has checked the messages of clients: what it sends itself is
// bounded by the protocol only.
func (c *Config) forWorker() *Config {
	own := *c
	own.Limits.Message, own.Limits.Depth = "256M", wire.DefaultLimits().Depth
	return &own
}

// forRank returns the settings of a rank's process on a device, which computes as its worker does. It may take so much
// memory; 0: no limit.
func (c *Config) forRank(device string, memory int64) *Config {
	own := *c
	own.Devices, own.Rates, own.Placement = device, "", PlacementThreads
	own.Hosts, own.Schedule, own.Ranks, own.Memory = "", "", 0, ""
	if memory > 0 {
		own.Memory = strconv.FormatInt(memory, 10)
	}
	return &own
}

// checkAccess returns an *InputError for flags of serve that exclude each other.
func (c *Config) checkAccess() error {
	if err := c.Access.Check(); err != nil {
		return &InputError{Err: err}
	}
	switch {
	case c.UsersFile != "" && c.TokenFile != "":
		return refuse("--users-file and --token-file exclude each other")
	case c.NATS != "" && c.UsersFile != "":
		return refuse("--users-file is for the server inside; the one of --nats has users of its own")
	}
	return nil
}
