package cli

import (
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"patchbay/cli/console"
	"patchbay/cli/settings"
	"patchbay/daemon"
	"patchbay/ipc/rights"
)

func serveCmd(version string) *cobra.Command {
	var cfg daemon.Config
	var permissions, file string
	cmd := &cobra.Command{
		Use:   "serve",
		Short: "Run the daemon",
		Long: `serve takes workflows over NATS and a unix socket and runs them in worker processes. Without --nats it carries
a NATS server inside, on 127.0.0.1 and without a password: every user of this machine has all rights. SIGTERM and Ctrl-C
let running jobs finish; a second one ends them. Jobs are written down in JetStream and outlive the daemon: what waits
is run after the next start, what ran goes on where it was, nothing is recorded twice.

Exit codes: 0 ended by a signal, 1 failed while it ran, 2 cannot start with these settings (a bad value, a file or
folder that is not there, an address or store that is in use), 3 the NATS server of --nats does not answer.`,
		Example: `  patchbay serve --comfyui ~/ComfyUI
  patchbay serve --config /etc/patchbay.yaml
  patchbay serve --http 127.0.0.1:8188 --templates examples/templates
  patchbay serve --nats nats://queue.example:4222 --models /models --output /pictures
  patchbay serve --listen 0.0.0.0:4222 --token-file /etc/patchbay/token
  patchbay serve --listen 0.0.0.0:4222 --users-file users.conf --tls-cert server.pem --tls-key server-key.pem
  patchbay serve --http 0.0.0.0:8188 --users-file users.conf --http-cert server.pem --http-key server-key.pem
  patchbay serve --hosts a,b --cluster-key cluster.key
  patchbay serve --nats tls://queue.example --creds daemon.creds --tls-ca ca.pem`,
		Args: console.ExactArgs(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if permissions != "" {
				return printPermissions(cmd, permissions)
			}
			if _, err := loadSettings(cmd.Flags(), &cfg, file); err != nil {
				return err
			}
			return daemon.Run(cmd.Context(), &cfg, console.Logger(cmd.ErrOrStderr(), cfg.Log), version)
		},
	}
	f := cmd.Flags()
	f.StringVar(&file, "config", "", "YAML file of settings, whose keys are the names of these flags (patchbay config)")
	_ = cmd.MarkFlagFilename("config", "yaml", "yml") // it exists
	f.StringVar(&permissions, "print-permissions", "",
		"print the rights of these users (client=NAME, daemon=NAME, admin=NAME) for a NATS server, and end; without a "+
			"value those of examples/nats-server.conf")
	f.Lookup("print-permissions").NoOptDefVal = "example"
	serveSettings(f, &cfg)
	return cmd
}

// serveSettings adds the flags that are settings of a daemon. A file of settings may have all of them.
func serveSettings(f *pflag.FlagSet, cfg *daemon.Config) {
	settings.NATS(f, cfg, "URL of an external NATS server")
	f.StringVar(&cfg.Listen, "listen", "127.0.0.1:4222", "address of the NATS server inside; port 0 takes a free one")
	f.StringVar(&cfg.TokenFile, "token-file", "", "file with the token that clients of the server inside must send")
	f.StringVar(&cfg.UsersFile, "users-file", "",
		"nats-server configuration with the users of the server inside and their rights (see --print-permissions); those "+
			"with passwords may use --http too")
	settings.Access(f, &cfg.Access)
	f.StringVar(&cfg.Store, "store", "", "folder of the daemon's own files (default PATCHBAY_HOME/store)")
	settings.Socket(f, cfg)
	f.IntVar(&cfg.Workers, "workers", 1, "worker processes; each runs one job at a time (see --schedule)")
	f.StringVar(&cfg.Metrics, "metrics", "",
		"host:port for /metrics (Prometheus) and /healthz; port 0 takes a free one (default: none)")
	f.StringVar(&cfg.HTTP, "http", "",
		"host:port for ComfyUI's HTTP and websocket API; port 0 takes a free one (default: none)")
	f.StringVar(&cfg.HTTPTokenFile, "http-token-file", "", "file with the token that clients of --http must send, "+
		"if they are no users of --users-file; without both only this machine is served")
	f.StringVar(&cfg.HTTPCert, "http-cert", "", "PEM file of the certificate of --http, which is HTTPS then")
	f.StringVar(&cfg.HTTPKey, "http-key", "", "PEM file of its private key")
	f.StringVar(&cfg.Frontend, "frontend", "", "folder of ComfyUI's editor (package comfyui-frontend-package), which "+
		"--http serves; auto: one in the environment of --comfyui or of python3 (default: none)")
	f.StringArrayVar(&cfg.HTTPOrigins, "http-origin", nil,
		"SCHEME://HOST of another web page that may use --http; may be given several times")
	f.StringVar(&cfg.Templates, "templates", "",
		"folder of workflows with named parameters, NAME.json, for POST /patchbay/run/NAME and /v1/images of --http")
	f.StringVar(&cfg.WebhookSecretFile, "webhook-secret-file", "", "file with the secret (whsec_...) that signs the "+
		"reports of jobs' ends to the URLs that they name (default: such jobs are refused)")
	f.StringArrayVar(&cfg.WebhookHosts, "webhook-host", nil, "HOST[:PORT] to which ends may be reported; may be given "+
		"several times (default: every host with a public address)")
	settings.Traces(f, cfg)
	f.DurationVar(&cfg.Drain, "drain", 30*time.Second, "how long running jobs may take to finish after SIGTERM")
	settings.Folders(f, cfg)
	settings.Hosts(f, cfg)
	settings.Schedule(f, cfg)
	settings.Jobs(f, cfg)
	settings.Limits(f, &cfg.Limits)
	settings.QueueLimits(f, &cfg.Limits)
}

// loadSettings completes the settings of a daemon from its command line, the environment and a file ("": none), in this
// order of precedence, and checks them all. The file is nil if there is none.
func loadSettings(f *pflag.FlagSet, cfg *daemon.Config, path string) (file *settings.File, err error) {
	if path != "" {
		file, err = settings.ReadFile(path)
		if file != nil { // what can be read of it
			err = errors.Join(err, file.Apply(f))
		}
		if err != nil {
			return nil, console.BadInput(err)
		}
	}
	listen, nats := file.Rank(f, "listen"), file.Rank(f, "nats")
	switch {
	case listen > 0 && listen == nats && cfg.NATS != "":
		return nil, file.Located(f, &daemon.InputError{Err: errors.New("--nats uses another NATS server and --listen one " +
			"inside: they exclude each other")})
	case listen > nats:
		cfg.NATS = ""
	}
	return file, file.Located(f, cfg.CompleteDaemon())
}

// defaultUsers are those of examples/nats-server.conf.
const defaultUsers = "daemon=daemon,admin=admin,client=alice,client=bob"

// printPermissions prints the rights of users as nats-server configuration.
func printPermissions(cmd *cobra.Command, text string) error {
	if text == "example" {
		text = defaultUsers
	}
	users, err := rights.ParseUsers(text)
	if err != nil {
		return console.BadInput(fmt.Errorf("--print-permissions: %w", err))
	}
	console.Printf(cmd.OutOrStdout(), "%s", rights.ServerConfig(users))
	return nil
}
