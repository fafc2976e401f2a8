package cli

import (
	"errors"

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
			c, err := t.Dial()
			if err != nil {
				return err
			}
			defer console.CloseQuietly(c)
			var failed error
			for _, job := range args {
				ctx, stop := asking(cmd.Context())
				job, err := client.Find(ctx, c, job)
				var did bool
				var state message.State
				if err == nil {
					did, state, err = client.Cancel(ctx, c, job)
				}
				stop()
				switch {
				case err != nil:
					failed = errors.Join(failed, err)
				case did:
					console.Printf(cmd.OutOrStdout(), "%s cancelled\n", job)
				default:
					console.Printf(cmd.OutOrStdout(), "%s had ended: %s\n", job, state)
				}
			}
			return failed
		},
	}
	t.Add(cmd.Flags())
	cmd.ValidArgsFunction = jobIDs(&t, message.Queued, message.Running)
	return cmd
}
