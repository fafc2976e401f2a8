package cli

import (
	"github.com/spf13/cobra"

	"patchbay/cli/console"
	"patchbay/cli/settings"
	"patchbay/ipc/client"
)

func watchCmd() *cobra.Command {
	var t settings.Target
	var asJSON bool
	var from uint64
	cmd := &cobra.Command{
		Use:   "watch JOB",
		Short: "Show the events of a job until it ends",
		Long: "watch shows what has happened to a job and goes on until it ends. Its exit codes are those of run; " +
			"Ctrl-C ends the watching, not the job.",
		Example: "  patchbay watch 01j9zq --json",
		Args:    console.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := t.DialLasting()
			if err != nil {
				return err
			}
			defer console.CloseQuietly(c)
			ask, stop := asking(cmd.Context())
			defer stop()
			job, err := client.Find(ask, c, args[0])
			if err != nil {
				return err
			}
			shows := console.NewProgress(cmd.OutOrStdout(), asJSON)
			defer shows.Close()
			c.Say = shows.Note(cmd.ErrOrStderr())
			end, err := client.Follow(cmd.Context(), c, job, from, false, &client.Collector{Event: shows.Event})
			return shows.Finish(end, err, nil, "")
		},
	}
	t.Add(cmd.Flags())
	cmd.ValidArgsFunction = jobIDs(&t)
	t.Reconnect(cmd.Flags())
	cmd.Flags().BoolVar(&asJSON, "json", false, "print one JSON object a line for every event")
	cmd.Flags().Uint64Var(&from, "from", 0, "number of the first event to show")
	return cmd
}
