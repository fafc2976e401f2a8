// Package settings holds the flags and environment variables that several commands share: folders, how jobs are kept,
// limits, and the daemon to talk to. Reading order: flags, environment, file (of settings), target.
package settings

import (
	"cmp"
	"fmt"
	"net/url"
	"os"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"patchbay/daemon"
	"patchbay/ipc/wire"
	"patchbay/node/value"
)

// Folders adds the flags of everything that runs jobs: models, input and output folders, devices, compute type, memory
// and logging.
func Folders(f *pflag.FlagSet, c *daemon.Config) {
	Models(f, c)
	f.StringVar(&c.Input, "input", "", "folder of pictures for LoadImage")
	f.StringVar(&c.Output, "output", "", "folder that SaveImage writes into")
	Devices(f, c)
	Compute(f, &c.Compute)
	Memory(f, c)
	f.DurationVar(&c.FreeAfter, "free-after", 0,
		"give back models and caches when nothing was asked for this long; 0: never")
	Log(f, c)
}

// Inherited adds the hidden flag by which a process gets the settings of the one that started it.
func Inherited(f *pflag.FlagSet, text *string) {
	f.StringVar(text, "config", "", "settings of the process that started this one, as JSON")
	_ = f.MarkHidden("config") // it exists
}

// Compute adds the flag of the type that the denoise loop computes in.
func Compute(f *pflag.FlagSet, compute *string) {
	f.StringVar(compute, "compute", string(value.ComputeAuto),
		"type of the denoise loop's activations: f32, bf16, or auto: bf16 where the processor multiplies it and the "+
			"file holds it")
}

// Memory adds the flag that bounds memory.
func Memory(f *pflag.FlagSet, c *daemon.Config) {
	f.StringVar(&c.Memory, "memory", "",
		"memory that weights, pictures and buffers may take, as in 12G (default: nine tenths of what is available)")
}

// Log adds the flag of the log level.
func Log(f *pflag.FlagSet, c *daemon.Config) {
	f.StringVar(&c.Log, "log", "info", "least level of log lines: debug, info, warn, error")
}

// Devices adds the flags that say what to compute on.
func Devices(f *pflag.FlagSet, c *daemon.Config) {
	f.StringVar(&c.Devices, "devices", "auto", "what to compute on: auto (all GPUs, cpu where there are none), cpu, or "+
		"the GPUs of the ranks as in cuda:0 or cuda:0-3")
	f.StringVar(&c.Rates, "rates", "", "file of rates that bench step and bench comm --save have measured: stages are "+
		"balanced and plans chosen by it")
	f.StringVar(&c.DeviceMemory, "device-memory", "",
		"memory of the GPU that weights and buffers may take, as in 20G (default: what is free there)")
	f.StringVar(&c.PackCache, "pack-cache", "", "folder where blocks that do not fit the devices are kept as these pack "+
		"them, for all processes and later starts (default: in memory)")
	f.StringVar(&c.Reserve, "reserve", "2G", "memory of the GPU that weights leave to others")
	f.StringVar(&c.CUDALibs, "cuda-libs", "", "folders where the driver, cuBLASLt, cuDNN and NCCL are looked for first, "+
		"as in A:B; off: NVIDIA's libraries but the driver are not used")
	_ = environment(f, "cuda-libs", "PATCHBAY_CUDA_LIBS")
	f.StringVar(&c.Placement, "placement", daemon.PlacementThreads, "where ranks run: threads of the worker, or "+
		"children, a process for each")
	f.StringVar(&c.Transport, "transport", daemon.TransportAuto, "how ranks on GPUs exchange: nccl, local (copies of our "+
		"own), or auto: nccl where it is found and every rank has a GPU of its own")
	f.StringVar(&c.Graphs, "graphs", daemon.GraphsOn, "on GPUs, evaluations of one rank alone are issued again as CUDA "+
		"graphs: on or off; the numbers are the same")
	f.BoolVar(&c.Deterministic, "deterministic", false, "one seed gives the same bits on every plan and number of ranks, "+
		"as deterministic=on in each plan; slower")
	f.DurationVar(&c.Patience, "patience", 0, "how long the ranks of a request may stand still together before it fails; "+
		"it must exceed the longest operation (default 10m)")
}

// GivenDevices returns those flags of Devices that the command line of f has, for another command that takes them.
func GivenDevices(f *pflag.FlagSet) (args []string) {
	all := pflag.NewFlagSet("", pflag.ContinueOnError)
	Devices(all, &daemon.Config{})
	all.VisitAll(func(d *pflag.Flag) {
		if given := f.Lookup(d.Name); given.Changed {
			args = append(args, fmt.Sprintf("--%s=%s", given.Name, given.Value))
		}
	})
	return args
}

// Schedule adds the flags that say how waiting jobs share the devices.
func Schedule(f *pflag.FlagSet, c *daemon.Config) {
	f.StringVar(&c.Schedule, "schedule", "one", "jobs that wait run one at a time, side by side on groups of devices "+
		"that end them soonest (auto: one that is alone has all devices), or with as few devices as each fits (each)")
	f.IntVar(&c.Ranks, "ranks", 0, "places for ranks on the processors, which --schedule shares out")
}

// Hosts adds the flags for ranks on other machines.
func Hosts(f *pflag.FlagSet, c *daemon.Config) {
	f.StringVar(&c.Hosts, "hosts", "", "run ranks on these machines (patchbay host), as in a,b:7117, and not "+
		"here; @FILE has one a line and may change while jobs run; cluster:NAME are those that have joined it (host --join)")
	ClusterKey(f, c)
}

// NATS adds the flag of the NATS server of a daemon or host. Help does not show what the environment has, which may
// contain a password.
func NATS(f *pflag.FlagSet, c *daemon.Config, usage string) {
	f.StringVar(&c.NATS, "nats", "", usage)
	_ = environment(f, "nats", "PATCHBAY_NATS_URL")
}

// Traces adds the flag of the collector of traces. The variables are OpenTelemetry's.
func Traces(f *pflag.FlagSet, c *daemon.Config) {
	f.StringVar(&c.Traces, "traces", "", "URL of an OpenTelemetry collector that gets a trace of every job by OTLP over "+
		"HTTP, as in http://127.0.0.1:4318 (default: none)")
	const all, own = "OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"
	variable := own
	if os.Getenv(own) == "" && os.Getenv(all) != "" {
		variable = all
	}
	off := os.Getenv("OTEL_TRACES_EXPORTER") == "none" || strings.EqualFold(os.Getenv("OTEL_SDK_DISABLED"), "true")
	if off {
		return
	}
	_ = environment(f, "traces", variable)
	if u, err := url.Parse(c.Traces); err == nil && variable == all && c.Traces != "" {
		c.Traces = u.JoinPath("v1/traces").String() // by OpenTelemetry's rules, of the general variable only
	}
}

// ClusterKey adds the flags of the secret that hosts and their leaders share, and of a trusted network between them.
func ClusterKey(f *pflag.FlagSet, c *daemon.Config) {
	f.StringVar(&c.ClusterKey, "cluster-key", "", "file with the secret that all hosts share, which only you may read")
	_ = environment(f, "cluster-key", "PATCHBAY_CLUSTER_KEY")
	f.BoolVar(&c.TrustedNetwork, "trusted-network", false, "let GPUs of several machines exchange by NCCL, which neither "+
		"encrypts nor authenticates; else through host memory over TLS")
}

// Models adds the flags that say where models are.
func Models(f *pflag.FlagSet, c *daemon.Config) {
	f.StringArrayVar(&c.Models, "models", nil, "folder laid out like ComfyUI's models folder; may be given several times")
	annotate(f.Lookup("models"), modelsVariable) // read only where no folder is given, see daemon.Config.Complete
	f.StringVar(&c.ComfyUI, "comfyui", "", "ComfyUI folder: its models, input and output folders are "+
		"used, and the folders of its extra_model_paths.yaml")
	f.BoolVar(&c.StrictLinks, "strict-links", false, "follow no link that leads out of the models folders, also none of "+
		"root or of this user")
}

// Jobs adds the flags that say how jobs are kept.
func Jobs(f *pflag.FlagSet, c *daemon.Config) {
	f.StringVar(&c.Queue, "queue", daemon.QueueDurable,
		"durable: jobs are kept in JetStream and outlive the daemon; memory: they do not")
	f.StringVar(&c.Sync, "sync", daemon.SyncAlways, "when the server inside waits for the disk: always, or at an "+
		"interval of two minutes (a power failure may lose that)")
	f.IntVar(&c.Attempts, "attempts", 3, "how often a job is started whose worker dies")
	f.IntVar(&c.KeepJobs, "keep-jobs", 1000, "how many ended jobs are remembered")
	f.DurationVar(&c.KeepFor, "keep-for", 7*24*time.Hour, "how long ended jobs are remembered; 0: only by number")
	f.DurationVar(&c.KeepFiles, "keep-results", 0,
		"remove the files of ended jobs after this long, from the output folder too; 0: never")
	f.StringVar(&c.KeepBytes, "keep-bytes", "", "remove the files of the oldest jobs, from the output folder too, "+
		"when all have more bytes, as in 20G (default: never)")
	f.StringVar(&c.ResumeBytes, "resume-bytes", "2G", "disk space for the evaluations of running jobs, so that one whose "+
		"worker dies goes on where it was; the oldest go first. off: it begins again")
	f.IntVar(&c.Replicas, "replicas", 0,
		"copies of every job on the servers of a NATS cluster, 1 to 5 (default: 3 if it has as many, or else 1)")
}

// Limits adds the flags of the limits that daemon and worker share.
func Limits(f *pflag.FlagSet, l *daemon.Limits) {
	f.StringVar(&l.Message, "max-message", "",
		"largest request, as in 16M (default 64M on NATS, 256M on socket and stdio)")
	f.IntVar(&l.Depth, "max-depth", 64, "how deep lists and maps of a request may be nested")
	f.StringVar(&l.Pixels, "max-pixels", "",
		"largest picture or latent: width x height x batch, as in 4M (default: any, within the limits of the classes)")
	f.IntVar(&l.Steps, "max-steps", 10000, "most steps of one sampling run")
	l.Err = cmp.Or(l.Err, environment(f, "max-message", "PATCHBAY_MAX_MESSAGE"),
		environment(f, "max-depth", "PATCHBAY_MAX_DEPTH"), environment(f, "max-pixels", "PATCHBAY_MAX_PIXELS"),
		environment(f, "max-steps", "PATCHBAY_MAX_STEPS"))
}

// QueueLimits adds the flags of the limits on the daemon's queue.
func QueueLimits(f *pflag.FlagSet, l *daemon.Limits) {
	l.Queued = true
	f.IntVar(&l.Queue, "max-queue", 10000, "most jobs that wait")
	f.IntVar(&l.Client, "max-client-jobs", 0, "most jobs of one client that have not ended; 0: any number")
	l.Err = cmp.Or(l.Err, environment(f, "max-queue", "PATCHBAY_MAX_QUEUE"),
		environment(f, "max-client-jobs", "PATCHBAY_MAX_CLIENT_JOBS"))
}

// Pixels parses a --size, WIDTHxHEIGHT with sides of least to most pixels.
func Pixels(size string, least, most int) (w, h int, err error) {
	if n, err := fmt.Sscanf(size, "%dx%d", &w, &h); n != 2 || err != nil || min(w, h) < least || max(w, h) > most {
		return 0, 0, fmt.Errorf("--size %s: want width x height from %d to %d pixels", size, least, most)
	}
	return w, h, nil
}

// Access adds the flags of the credentials and trusted authorities of NATS connections.
func Access(f *pflag.FlagSet, a *wire.Access) {
	f.StringVar(&a.Creds, "creds", "", "NATS credentials file (JWT and seed of a user)")
	f.StringVar(&a.NKey, "nkey", "", "file with the seed of a NATS NKey")
	f.StringVar(&a.CA, "tls-ca", "", "PEM file of the authorities to trust in NATS connections")
	f.StringVar(&a.Cert, "tls-cert", "", "PEM file of the certificate to show in NATS connections")
	f.StringVar(&a.Key, "tls-key", "", "PEM file of its private key")
	f.StringVar(&a.Inbox, "inbox-prefix", "", "subject below which NATS replies come (default _INBOX.<user>)")
	for _, of := range [][2]string{
		{"creds", "PATCHBAY_NATS_CREDS"},
		{"nkey", "PATCHBAY_NATS_NKEY"},
		{"tls-ca", "PATCHBAY_NATS_CA"},
		{"tls-cert", "PATCHBAY_NATS_CERT"},
		{"tls-key", "PATCHBAY_NATS_KEY"},
		{"inbox-prefix", "PATCHBAY_NATS_INBOX"},
	} {
		_ = environment(f, of[0], of[1])
	}
}

// Socket adds the flag of the daemon's socket.
func Socket(f *pflag.FlagSet, c *daemon.Config) {
	f.StringVar(&c.Socket, "socket", "", "unix socket, or off (default $XDG_RUNTIME_DIR/patchbay.sock)")
	_ = environment(f, "socket", "PATCHBAY_SOCKET")
}
