package cli

import (
	"context"

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
			"the memory to the system.",
		Example: "  patchbay free\n  patchbay free flux1-dev.safetensors",
		RunE: func(cmd *cobra.Command, args []string) error {
			out, err := ask(cmd, &t, func(ctx context.Context, c client.Client) (message.FreeReply, error) {
				return client.Free(ctx, c, &message.FreeRequest{Models: args})
			})
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
