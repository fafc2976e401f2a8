package cli

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"patchbay/cli/console"
	"patchbay/cli/settings"
	"patchbay/ipc/client"
	"patchbay/ipc/message"
)

func freeCmd() *cobra.Command {
	var t settings.Target
	cmd := &cobra.Command{
		Use:   "free [MODEL...]",
		Short: "Have a daemon give back models, or all models and caches",
		Long: "Have a daemon give back the weights of models, or without a name all models, caches and handles, and return " +
			"the memory to the system. It waits for the jobs that are running.",
		Example: "  patchbay free\n  patchbay free flux1-dev.safetensors",
		RunE: func(cmd *cobra.Command, args []string) error {
			out, err := askWithin(cmd, &t, freeTime, func(ctx context.Context, c client.Client) (message.FreeReply, error) {
				return client.Free(ctx, c, &message.FreeRequest{Models: args})
			})
			if errors.Is(err, context.DeadlineExceeded) {
				return fmt.Errorf("no answer within %s: a daemon gives back models when the jobs that run have ended", freeTime)
			}
			if err != nil {
				return err
			}
			console.Printf(cmd.OutOrStdout(), "%d MB of models and %d handles were given back\n", out.Bytes>>20, out.Freed)
			return nil
		},
	}
	t.Add(cmd.Flags())
	return cmd
}

// freeTime bounds the wait for the jobs that are running, as in the Python client.
const freeTime = 2 * time.Minute
