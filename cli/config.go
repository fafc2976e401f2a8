package cli

import (
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"patchbay/cli/console"
	"patchbay/daemon"
)

func configCmd() *cobra.Command {
	return console.Group(&cobra.Command{
		Use:   "config",
		Short: "Check a daemon's file of settings, or show what is in effect",
		Long: `A file of settings (serve --config FILE) is YAML whose keys are the names of the flags of serve:

  models: [/models, /more]
  http: 127.0.0.1:8188
  keep-for: 24h

The command line goes before the environment, that before the file, and that before the defaults.`,
		Example: `  patchbay config check patchbay.yaml
  patchbay config show --config patchbay.yaml --workers 2`,
	}, configCheckCmd(), configShowCmd())
}

func configCheckCmd() *cobra.Command {
	return &cobra.Command{
		Use:   "check FILE",
		Short: "Say what is wrong with a file of settings, with lines",
		Long: `check reads a file of settings as serve --config does and says what is wrong, with lines: keys that are no
settings, values that are not allowed, and files, folders and devices that are not on this machine. It starts nothing.
Exit code 2 if something is wrong.`,
		Example: "  patchbay config check /etc/patchbay.yaml",
		Args:    console.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			var cfg daemon.Config
			f := pflag.NewFlagSet("serve", pflag.ContinueOnError)
			serveSettings(f, &cfg)
			file, err := loadSettings(f, &cfg, args[0])
			if err == nil {
				console.Printf(cmd.OutOrStdout(), "%s: %d settings, nothing is wrong\n", args[0], file.Count())
			}
			return err
		},
		ValidArgsFunction: func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
			return []string{"yaml", "yml"}, cobra.ShellCompDirectiveFilterFileExt
		},
	}
}

func configShowCmd() *cobra.Command {
	var cfg daemon.Config
	var path string
	cmd := &cobra.Command{
		Use:   "show [--config FILE] [FLAGS OF SERVE]",
		Short: "Show every setting in effect, and where it is from",
		Long: `show takes the flags of serve, and prints every setting that a daemon started with them would have, as a file
of settings, with the origin of each: command line, environment, line of the file, or default. Passwords in URLs are
left out.`,
		Example: "  patchbay config show --config /etc/patchbay.yaml",
		Args:    console.ExactArgs(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			file, err := loadSettings(cmd.Flags(), &cfg, path)
			if err != nil {
				return err
			}
			text, err := file.Listing(cmd.Flags())
			console.Printf(cmd.OutOrStdout(), "%s", text)
			return err
		},
	}
	cmd.Flags().StringVar(&path, "config", "", "file of settings")
	_ = cmd.MarkFlagFilename("config", "yaml", "yml") // it exists
	serveSettings(cmd.Flags(), &cfg)
	return cmd
}
