package cli

import (
	"fmt"
	"os"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"patchbay/cli/console"
	"patchbay/cli/settings"
	"patchbay/daemon"
)

// hostCmd offers this machine to the daemons of a cluster.
func hostCmd(version string) *cobra.Command {
	cfg := daemon.Config{Version: version}
	var listen, newKey string
	var places int
	var member daemon.Membership
	cmd := &cobra.Command{
		Use:   "host",
		Short: "Offer this machine's devices to a daemon elsewhere",
		Long: `host runs ranks of plans for "patchbay serve --hosts". Both have a copy of one file with a secret, by which
they know each other and encrypt what they say. Each host has the model files in folders of its own; they are found by
name and compared by content. The VAE runs where the daemon is, and so do text encoders that no plan cuts.`,
		Example: `  patchbay host --new-key cluster.key           # once; copy it to all machines
  patchbay host --cluster-key cluster.key --models /models
  patchbay serve --hosts a,b --cluster-key cluster.key --models /models`,
		Args: console.ExactArgs(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if newKey != "" {
				return daemon.NewKeyFile(newKey)
			}
			if err := cfg.CompleteModels(); err != nil {
				return err
			}
			log := console.Logger(cmd.ErrOrStderr(), cfg.Log)
			return daemon.RunHost(cmd.Context(), &cfg, listen, places, member, log, func(err error) {
				log.Error().Err(err).Msg("the host begins anew")
				self, failed := os.Executable()
				if failed == nil {
					failed = unix.Exec(self, os.Args, os.Environ())
				}
				console.Report(os.Stderr, fmt.Errorf("begin anew: %w", failed))
				os.Exit(1)
			})
		},
	}
	f := cmd.Flags()
	f.StringVar(&listen, "listen", fmt.Sprintf(":%d", daemon.HostPort), "address for daemons and other hosts")
	f.IntVar(&places, "ranks", 0, "how many ranks run here at most (default: one, or one a GPU)")
	f.StringVar(&member.Cluster, "join", "", "be a member of this cluster, for daemons with --hosts cluster:NAME on the "+
		"NATS server of --nats")
	f.StringVar(&member.Address, "address", "", "HOST:PORT by which others reach this machine, for --join "+
		"(default: its name)")
	settings.NATS(f, &cfg, "NATS server of --join")
	settings.Access(f, &cfg.Access)
	f.StringVar(&newKey, "new-key", "", "write a new secret to this file, and end")
	settings.ClusterKey(f, &cfg)
	settings.Models(f, &cfg)
	settings.Devices(f, &cfg)
	settings.Memory(f, &cfg)
	settings.Log(f, &cfg)
	return cmd
}

// rankCmd is the hidden command that a worker starts for each rank with --placement children.
func rankCmd() *cobra.Command {
	var cfg daemon.Config
	var listen, inherited string
	cmd := &cobra.Command{
		Use: "rank", Short: "Compute one rank's share for a worker, which starts this", Hidden: true,
		Args: console.ExactArgs(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := cfg.Inherit(inherited); err != nil {
				return err
			}
			return daemon.RunRank(cmd.Context(), &cfg, listen, console.Logger(cmd.ErrOrStderr(), "info"))
		},
	}
	settings.Inherited(cmd.Flags(), &inherited)
	cmd.Flags().StringVar(&listen, "listen", "", "path of the socket where other ranks find this one")
	return cmd
}
