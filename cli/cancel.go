package cli

import (
	"context"

	"github.com/spf13/cobra"

	"patchbay/ipc/client"
	"patchbay/ipc/message"
)

func cancelCmd() *cobra.Command {
	return ofEach(&cobra.Command{
		Use:     "cancel JOB...",
		Short:   "Cancel waiting or running jobs",
		Example: "  patchbay cancel 01j9zq",
	}, func(ctx context.Context, c client.Client, job string) (string, error) {
		did, state, err := client.Cancel(ctx, c, job)
		if did {
			return "cancelled", err
		}
		return "had ended: " + string(state), err
	}, message.Queued, message.Running)
}
