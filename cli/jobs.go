package cli

import (
	"cmp"
	"context"

	"github.com/spf13/cobra"

	"patchbay/cli/console"
	"patchbay/cli/settings"
	"patchbay/ipc/client"
	"patchbay/ipc/message"
)

func jobsCmd() *cobra.Command {
	var t settings.Target
	var state string
	var limit int
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "jobs",
		Short: "List jobs, newest first",
		Long: "jobs lists the newest jobs: what they draw, on which model and with which plan, how old they are and how " +
			"long they ran. The beginning of an id is enough for other commands.",
		Example: "  patchbay jobs --state failed",
		Args:    console.ExactArgs(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			var counts map[message.State]int
			list, err := ask(cmd, &t, func(ctx context.Context, c client.Client) (list []message.Record, err error) {
				list, counts, err = client.List(ctx, c, message.State(state), limit)
				return list, err
			})
			if err != nil {
				return err
			}
			if asJSON {
				for _, r := range list {
					console.PrintJSON(cmd.OutOrStdout(), r)
				}
				return nil
			}
			var rows [][]string
			for _, r := range list {
				rows = append(rows, []string{
					r.Job, string(r.State), console.Age(r.Created), console.OrDash(console.Took(r)),
					console.OrDash(r.Model), console.OrDash(r.Plan),
					console.OrDash(cmp.Or(console.FailureOf(r), r.About)),
				})
			}
			console.PrintColumns(cmd.OutOrStdout(), []string{"JOB", "STATE", "AGE", "TOOK", "MODEL", "PLAN", "ABOUT"}, rows)
			if console.IsTerminal(cmd.OutOrStdout()) {
				console.Printf(cmd.OutOrStdout(), "%d queued, %d running, %d done, %d failed\n", counts[message.Queued],
					counts[message.Running], counts[message.Done], counts[message.Failed])
			}
			return nil
		},
	}
	f := cmd.Flags()
	t.Add(f)
	f.StringVar(&state, "state", "", "only jobs in this state: queued, running, done, failed, cancelled, expired")
	var states []cobra.Completion
	for _, s := range message.States() {
		states = append(states, string(s))
	}
	complete(cmd, "state", cobra.FixedCompletions(states, cobra.ShellCompDirectiveNoFileComp))
	f.IntVar(&limit, "limit", 100, "at most so many")
	f.BoolVar(&asJSON, "json", false, "print one JSON object a line")
	return cmd
}
