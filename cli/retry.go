package cli

import (
	"errors"

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
			c, err := t.Dial()
			if err != nil {
				return err
			}
			defer console.CloseQuietly(c)
			var failed error
			for _, job := range args {
				ctx, stop := asking(cmd.Context())
				job, err := client.Find(ctx, c, job)
				if err == nil {
					err = client.Retry(ctx, c, job)
				}
				stop()
				if err != nil {
					failed = errors.Join(failed, err)
					continue
				}
				console.Printf(cmd.OutOrStdout(), "%s queued\n", job)
			}
			return failed
		},
	}
	t.Add(cmd.Flags())
	cmd.ValidArgsFunction = jobIDs(&t, message.Failed, message.Cancelled, message.Expired)
	return cmd
}
