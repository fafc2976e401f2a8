package cli

import (
	"runtime"
	"strings"

	"github.com/spf13/cobra"

	"patchbay/cli/console"
	"patchbay/daemon"
	"patchbay/ipc/message"
	"patchbay/node/graph"
)

func versionCmd(version string) *cobra.Command {
	return &cobra.Command{
		Use:     "version",
		Short:   "Show version, protocol and compatibility",
		Example: "  patchbay version",
		Args:    console.ExactArgs(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			console.Printf(cmd.OutOrStdout(), "patchbay %s\nprotocol v%d\ncomfyui  %s\ngo       %s %s/%s\ncpu      %s\n",
				version, message.ProtocolVersion, graph.Compat,
				strings.TrimPrefix(runtime.Version(), "go"), runtime.GOOS, runtime.GOARCH, strings.Join(daemon.CPULevels(), " "))
			return nil
		},
	}
}
