package daemon

import (
	"cmp"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"patchbay/ipc/wire"
	"patchbay/node/files"
	"patchbay/parallel/remote"
)

// InputError is a setting that is refused before anything is started.
type InputError = wire.InputError

func refuse(format string, args ...any) error { return &InputError{Err: fmt.Errorf(format, args...)} }

// Config is the configuration of a daemon or worker: defaults, then environment, then flags. Its JSON form is logged
// when the process starts, and is in the command line of processes that it starts: it has no secrets.
type Config struct {
	NATS      string   `json:"-"`                // external server, maybe with a password; empty: one inside
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
	PackCache    string `json:"pack_cache,omitempty"` // folder of packed blocks; empty: they are in memory
	Placement    string `json:"placement,omitempty"`  // of ranks: threads or children; empty: threads
	Transport    string `json:"transport,omitempty"`  // of ranks on GPUs: auto, local or nccl; empty: auto
	Schedule     string `json:"schedule,omitempty"`   // of waiting jobs: one, auto or each; empty: one
	Ranks        int    `json:"ranks,omitempty"`      // places on the processors; 0: one, for plans of any size
	Hosts        string `json:"hosts,omitempty"`      // HOST:PORT,... or @FILE: where ranks run; empty: here
	ClusterKey   string `json:"cluster_key,omitempty"`
	Version      string `json:"-"`                   // of the program
	Private      bool   `json:"private,omitempty"`   // a worker: of a daemon, which has validated what it sends
	CUDALibs     string `json:"cuda_libs,omitempty"` // folders of NVIDIA's libraries, see package library
	Graphs       string `json:"graphs,omitempty"`    // evaluations as CUDA graphs: on or off; empty: on
	// Deterministic adds deterministic=on to every plan, and restricts GPUs to our own kernels.
	Deterministic bool `json:"deterministic,omitempty"`
	// Loaded is called when this process opens a GPU, with how its kernels were loaded, in words. Nil: nobody asks.
	Loaded func(device, kernels string) `json:"-"`
	// TrustedNetwork allows GPUs of several machines to exchange data by NCCL, which neither encrypts nor
	// authenticates.
	TrustedNetwork bool `json:"trusted_network,omitempty"`
	// Patience is how long all ranks of a request may make no progress; 0: ten minutes.
	Patience time.Duration `json:"patience,omitempty"`

	Workers int    `json:"workers,omitempty"`
	Metrics string `json:"metrics,omitempty"` // address of /metrics and /healthz; empty: none
	HTTP    string `json:"http,omitempty"`    // address of ComfyUI's HTTP API; empty: none
	// HTTPTokenFile holds the token that its clients must send, HTTPOrigins are other web pages that may use it.
	HTTPTokenFile string   `json:"http_token_file,omitempty"`
	HTTPOrigins   []string `json:"http_origins,omitempty"`
	HTTPCert      string   `json:"http_cert,omitempty"` // PEM files of certificate and key; empty: no TLS
	HTTPKey       string   `json:"http_key,omitempty"`
	// Frontend is a folder of ComfyUI's editor; auto: one that is found beside ComfyUI or Python, see findFrontend.
	Frontend  string `json:"frontend,omitempty"`
	Templates string `json:"templates,omitempty"` // folder of workflows with named parameters; empty: none

	// WebhookSecretFile holds the secret that signs the reports of jobs' ends; empty: there are none. WebhookHosts are
	// the hosts that they may go to; empty: all with public addresses.
	WebhookSecretFile string   `json:"webhook_secret_file,omitempty"`
	WebhookHosts      []string `json:"webhook_hosts,omitempty"`

	// Traces is the URL of an OpenTelemetry collector that gets traces of jobs; empty: none does.
	Traces string `json:"traces,omitempty"`

	Drain     time.Duration `json:"drain,omitempty"`
	Queue     string        `json:"queue,omitempty"` // durable or memory
	Sync      string        `json:"sync,omitempty"`  // always or interval
	Attempts  int           `json:"attempts,omitempty"`
	KeepJobs  int           `json:"keep_jobs,omitempty"`
	KeepFor   time.Duration `json:"keep_for,omitempty"`
	KeepFiles time.Duration `json:"keep_results,omitempty"`
	KeepBytes string        `json:"keep_bytes,omitempty"`
	Replicas  int           `json:"replicas,omitempty"`
	// ResumeBytes bounds the evaluations that workers keep for later attempts of their jobs; "off": none are kept.
	ResumeBytes string `json:"resume_bytes,omitempty"`
	Log         string `json:"log"`

	StrictLinks bool        `json:"strict_links,omitempty"`
	Extra       files.Extra `json:"extra_models,omitzero"` // from the ComfyUI tree

	Limits Limits `json:"limits"`

	UsersFile string      `json:"users_file,omitempty"`
	Access    wire.Access `json:"-"`
}

// Limits bound what clients may ask for, as given by flags and environment.
type Limits struct {
	Message string `json:"message,omitempty"` // bytes
	Depth   int    `json:"depth,omitempty"`
	Pixels  string `json:"pixels,omitempty"`
	Steps   int    `json:"steps,omitempty"`
	Queue   int    `json:"queue,omitempty"`       // serve only
	Client  int    `json:"client_jobs,omitempty"` // serve only
	// Queued reports whether Queue and Client are set, Err is a mistake in the environment; Check considers both.
	Queued bool  `json:"-"`
	Err    error `json:"-"`
}

// The values of --queue and --sync.
const (
	QueueDurable = "durable"
	queueMemory  = "memory"
	SyncAlways   = "always"
	syncInterval = "interval"
)

// The values of --placement.
const (
	PlacementThreads  = "threads"  // ranks share the process of their worker
	placementChildren = "children" // each rank has a process of its own
)

// The values of --transport: how ranks on GPUs exchange data.
const (
	TransportAuto  = "auto"  // by NCCL where it is found and every rank has a GPU of its own
	transportLocal = "local" // by copies of our own
	transportNCCL  = "nccl"
)

// The values of --graphs.
const (
	GraphsOn  = "on"
	graphsOff = "off"
)

// HostPort is the default port of hosts.
const HostPort = 7117

// clusterOf returns the cluster that --hosts names in place of a list, and whether it does.
func clusterOf(hosts string) (string, bool) { return strings.CutPrefix(hosts, "cluster:") }

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

// inHome makes an empty setting the folder of a name in Home. It refuses where there is no home, as in a service
// without HOME: Home is in the folder for temporary files then, which others can write to and which is cleared.
func inHome(setting *string, flag, name string) error {
	if _, err := os.UserHomeDir(); err != nil && *setting == "" && os.Getenv("PATCHBAY_HOME") == "" {
		return refuse("%s is missing, and there is no home for its default: set HOME or PATCHBAY_HOME, or name it", flag)
	}
	*setting = cmp.Or(*setting, filepath.Join(Home(), name))
	return nil
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

// Roots returns the folders in the form that package node takes.
func (c *Config) Roots() files.Roots {
	return files.Roots{
		Models: c.Models, Input: c.Input, Output: c.Output, Temp: c.Temp, ComfyUI: c.ComfyUI,
		Extra: c.Extra, StrictLinks: c.StrictLinks,
	}
}

// silence returns how long another process may be silent before it counts as lost.
func (c *Config) silence() time.Duration {
	return min(cmp.Or(c.Patience, remote.Silence), remote.Silence)
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
	inherited := Config{Version: c.Version}
	d := json.NewDecoder(strings.NewReader(text))
	d.DisallowUnknownFields()
	if err := d.Decode(&inherited); err != nil {
		return refuse("--config is for processes that patchbay itself starts: %w", err)
	}
	*c = inherited
	return nil
}

// forWorker returns the settings of a worker. The daemon has checked the messages of clients: what it sends itself is
// bounded by the protocol only.
func (c *Config) forWorker() *Config {
	child := *c
	child.Limits.Message, child.Limits.Depth = "256M", wire.DefaultLimits().Depth
	return &child
}

// forRank returns the settings of a rank's process on a device, which computes as its worker does. It may take so much
// memory; 0: no limit.
func (c *Config) forRank(device string, memory int64) *Config {
	child := *c
	child.Devices, child.Rates, child.Placement = device, "", PlacementThreads
	child.Hosts, child.Schedule, child.Ranks, child.Memory = "", "", 0, ""
	if memory > 0 {
		child.Memory = strconv.FormatInt(memory, 10)
	}
	return &child
}

func program() string {
	if self, err := os.Executable(); err == nil {
		return self
	}
	return os.Args[0]
}
