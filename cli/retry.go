package cli

import (
	"context"

	"github.com/spf13/cobra"

	"patchbay/ipc/client"
	"patchbay/ipc/message"
)

func retryCmd() *cobra.Command {
	return ofEach(&cobra.Command{
		Use:     "retry JOB...",
		Short:   "Run jobs once more that failed, were cancelled or have expired",
		Example: "  patchbay retry order-42",
	}, func(ctx context.Context, c client.Client, job string) (string, error) {
		return "queued", client.Retry(ctx, c, job)
	}, message.Failed, message.Cancelled, message.Expired)
}
