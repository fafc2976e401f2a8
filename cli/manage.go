package cli

import (
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"patchbay/cli/console"
	"patchbay/cli/settings"
	"patchbay/ipc/client"
	"patchbay/ipc/message"
)

func moveCmd() *cobra.Command {
	var to message.MoveRequest
	cmd := ofEach(&cobra.Command{
		Use:     "move JOB... --front | --priority P",
		Short:   "Move waiting jobs to the front, or to another priority",
		Example: "  patchbay move order-42 --front\n  patchbay move order-42 --priority low",
	}, func(ctx context.Context, c client.Client, job string) (string, error) {
		out, err := client.Move(ctx, c, job, to)
		return fmt.Sprintf("waits behind %d jobs", out.Position), err
	}, message.Queued)
	cmd.Flags().BoolVar(&to.Front, "front", false, "ahead of all waiting jobs")
	cmd.Flags().StringVar(&to.Priority, "priority", "", "behind the waiting jobs of that priority: "+
		strings.Join(message.Priorities(), ", "))
	cmd.MarkFlagsOneRequired("front", "priority")
	cmd.MarkFlagsMutuallyExclusive("front", "priority")
	return cmd
}

func deleteCmd() *cobra.Command {
	return ofEach(&cobra.Command{
		Use:   "delete JOB...",
		Short: "Delete the files of jobs that have ended",
		Long: "Delete the files of jobs that have ended, those in the output folder too. The jobs stay in the list. A file " +
			"that was changed since is left alone.",
		Example: "  patchbay delete order-42",
	}, func(ctx context.Context, c client.Client, job string) (string, error) {
		out, err := client.Delete(ctx, c, job)
		return fmt.Sprintf("%d files, %d KB deleted", out.Files, out.Bytes>>10), err
	}, message.Done, message.Failed, message.Cancelled)
}

func pauseCmd() *cobra.Command {
	return pausing(true, &cobra.Command{
		Use:   "pause",
		Short: "Let waiting jobs stay where they are",
		Long: "Let waiting jobs stay where they are until `patchbay resume`, also if the daemon starts anew. Jobs that run " +
			"go on, and new ones are taken. On a NATS server it reaches all daemons.",
		Example: "  patchbay pause",
	})
}

func resumeCmd() *cobra.Command {
	return pausing(false, &cobra.Command{
		Use: "resume", Short: "Let waiting jobs go on after pause", Example: "  patchbay resume",
	})
}

func pausing(paused bool, cmd *cobra.Command) *cobra.Command {
	var t settings.Target
	cmd.Args = console.Args(cobra.NoArgs)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		answers, err := ask(cmd, &t, func(ctx context.Context, c client.Client) ([]message.PauseReply, error) {
			return client.Pause(ctx, c, paused)
		})
		for _, a := range answers {
			state := "takes jobs"
			if a.Paused {
				state = "is paused"
			}
			console.Printf(cmd.OutOrStdout(), "%s %s, %d jobs wait\n", a.Daemon, state, a.Queued)
		}
		return err
	}
	t.Add(cmd.Flags())
	return cmd
}
