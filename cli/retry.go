package cli

import (
	"context"

	"github.com/spf13/cobra"

	"patchbay/cli/console"
	"patchbay/cli/settings"
	"patchbay/ipc/client"
	"patchbay/ipc/message"
)

func retryCmd() *cobra.Command {
	var t settings.Target
	cmd := &cobra.Command{
		Use:     "retry JOB...",
		Short:   "Run jobs once more that failed, were cancelled or have expired",
		Example: "  patchbay retry order-42",
		Args:    console.Args(cobra.MinimumNArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			return askOfEach(cmd, &t, args, func(ctx context.Context, c client.Client, job string) (string, error) {
				return "queued", client.Retry(ctx, c, job)
			})
		},
	}
	t.Add(cmd.Flags())
	cmd.ValidArgsFunction = jobIDs(&t, message.Failed, message.Cancelled, message.Expired)
	return cmd
}
