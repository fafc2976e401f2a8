package cli

import (
	"github.com/spf13/cobra"

	"patchbay/cli/console"
	"patchbay/cli/settings"
	"patchbay/daemon"
)

// rankCmd is what a worker starts for each rank with --placement children.
func rankCmd() *cobra.Command {
	var cfg daemon.Config
	var listen string
	cmd := &cobra.Command{
		Use: "rank", Short: "Compute one rank's share for a worker, which starts this", Hidden: true,
		Args: console.ExactArgs(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return daemon.RunRank(cmd.Context(), &cfg, listen, console.Logger(cmd.ErrOrStderr(), "info"))
		},
	}
	settings.Devices(cmd.Flags(), &cfg)
	cmd.Flags().StringVar(&cfg.Memory, "memory", "", "memory that weights and buffers may take, as in 12G")
	cmd.Flags().StringVar(&listen, "listen", "", "path of the socket where other ranks find this one")
	return cmd
}
