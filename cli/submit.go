package cli

import (
	"cmp"
	"context"
	"errors"
	"time"

	"github.com/spf13/cobra"

	"patchbay/cli/console"
	"patchbay/cli/settings"
	"patchbay/cli/workflow"
	"patchbay/ipc/client"
	"patchbay/ipc/message"
)

const reuseHelp = "answer from the last job with the same content, if its files are still there"

func submitCmd() *cobra.Command {
	var t settings.Target
	var sets []string
	var plan, id, priority, unique string
	var deadline, ttl, after, within time.Duration
	var asJSON, front, reuse bool
	cmd := &cobra.Command{
		Use:   "submit FILE|PICTURE|-",
		Short: "Queue a workflow and print its job id",
		Long: "submit queues a workflow and returns at once. watch shows its progress, get fetches its pictures, " +
			"cancel ends it.",
		Example: `  job=$(patchbay submit flow.json)
  patchbay watch $job && patchbay get $job --out pictures`,
		Args: console.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			req, w, err := workflow.Read(args[0], cmd.InOrStdin())
			if err != nil {
				return err
			}
			if err := workflow.SetInputs(w, sets); err != nil {
				return err
			}
			req.Workflow, req.Front, req.Reuse = string(w.JSON()), front, reuse
			req.Plan, req.ID = cmp.Or(plan, req.Plan), cmp.Or(id, req.ID)
			req.Priority = cmp.Or(priority, req.Priority)
			if deadline < 0 || ttl < 0 || after < 0 || within < 0 {
				return console.BadInput(errors.New("--deadline, --queue-ttl, --after and --unique-for are not negative"))
			}
			req.UniqueKey, req.UniqueMS = cmp.Or(unique, req.UniqueKey), cmp.Or(int(within.Milliseconds()), req.UniqueMS)
			if after > 0 {
				req.NotBefore = time.Now().Add(after).UnixMilli()
			}
			if deadline > 0 {
				req.DeadlineMS = int(deadline.Milliseconds())
			}
			if ttl > 0 {
				req.QueueTTLMS = int(ttl.Milliseconds())
			}
			r, err := ask(cmd, &t, func(ctx context.Context, c client.Client) (message.Receipt, error) {
				return client.Submit(ctx, c, req)
			})
			switch {
			case err != nil:
				return console.NewProgress(cmd.OutOrStdout(), asJSON).Finish(nil, err, nil, "")
			case asJSON:
				console.PrintJSON(cmd.OutOrStdout(), r)
			default:
				console.Printf(cmd.OutOrStdout(), "%s\n", r.Job)
			}
			return nil
		},
	}
	f := cmd.Flags()
	t.Add(f)
	f.StringArrayVar(&sets, "set", nil, "replace an input: id.field=value; may be given several times")
	f.StringVar(&plan, "plan", "", "how to split the work, as in ulysses=2,pipe=2 (default: one rank)")
	f.StringVar(&id, "id", "", "job id; submitting an id again is the same job")
	f.StringVar(&unique, "unique", "", "key in place of an id: a job with this key that waits or runs is the same job")
	f.DurationVar(&within, "unique-for", 0, "so is a done job that was submitted less than this ago")
	f.StringVar(&priority, "priority", "", "high, normal or low (default normal)")
	f.DurationVar(&deadline, "deadline", 0, "fail the job when it has run longer than this")
	f.DurationVar(&ttl, "queue-ttl", 0, "let the job expire when it has waited longer than this")
	f.DurationVar(&after, "after", 0, "let the job wait at least this long")
	f.BoolVar(&front, "front", false, "ahead of all waiting jobs")
	f.BoolVar(&reuse, "reuse", false, reuseHelp)
	cmd.ValidArgsFunction = flowFiles
	complete(cmd, "plan", plans)
	f.BoolVar(&asJSON, "json", false, "print the receipt as JSON")
	return cmd
}
