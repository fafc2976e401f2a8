package cli

import (
	"context"

	"github.com/spf13/cobra"

	"patchbay/cli/console"
	"patchbay/cli/settings"
	"patchbay/ipc/client"
	"patchbay/ipc/message"
)

func cancelCmd() *cobra.Command {
	var t settings.Target
	cmd := &cobra.Command{
		Use:     "cancel JOB...",
		Short:   "Cancel waiting or running jobs",
		Example: "  patchbay cancel 01j9zq",
		Args:    console.Args(cobra.MinimumNArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			return askOfEach(cmd, &t, args, func(ctx context.Context, c client.Client, job string) (string, error) {
				did, state, err := client.Cancel(ctx, c, job)
				if did {
					return "cancelled", err
				}
				return "had ended: " + string(state), err
			})
		},
	}
	t.Add(cmd.Flags())
	cmd.ValidArgsFunction = jobIDs(&t, message.Queued, message.Running)
	return cmd
}
