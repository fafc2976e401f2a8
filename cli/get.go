package cli

import (
	"fmt"

	"github.com/spf13/cobra"

	"patchbay/cli/console"
	"patchbay/cli/settings"
	"patchbay/ipc/client"
	"patchbay/ipc/message"
)

func getCmd() *cobra.Command {
	var t settings.Target
	var out string
	var asJSON bool
	cmd := &cobra.Command{
		Use:     "get JOB",
		Short:   "Fetch the pictures of a job that is done",
		Example: "  patchbay get 01j9zq --out pictures",
		Args:    console.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := t.Dial()
			if err != nil {
				return err
			}
			defer console.CloseQuietly(c)
			ctx, stop := asking(cmd.Context())
			defer stop()
			if err := console.CheckFolder(out); err != nil && !asJSON {
				return console.BadInput(fmt.Errorf("--out: %w", err))
			}
			job, err := client.Find(ctx, c, args[0])
			if err != nil {
				return err
			}
			if asJSON {
				rec, err := client.Status(ctx, c, job)
				if err == nil {
					console.PrintJSON(cmd.OutOrStdout(), rec)
				}
				return err
			}
			files, err := client.Fetch(cmd.Context(), c, job) // no deadline while data keeps coming
			if err != nil {
				return err
			}
			paths, err := console.SaveFiles(files, out)
			for _, p := range paths {
				console.Printf(cmd.OutOrStdout(), "%s\n", p)
			}
			return err
		},
	}
	t.Add(cmd.Flags())
	cmd.ValidArgsFunction = jobIDs(&t, message.Done)
	cmd.Flags().StringVar(&out, "out", ".", "folder for the pictures")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print the record of the job instead")
	return cmd
}
