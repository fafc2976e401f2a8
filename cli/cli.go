// Package cli implements the command line, one file per command.
//
// cli.go puts the commands together. What several of them share is in cli/console (exit codes, tables, progress),
// cli/settings (flags and environment) and cli/workflow (workflow files). cli/plan, cli/bench and cli/top are commands
// with packages of their own. Everything else is in the layers below.
package cli

import (
	"context"
	"errors"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"patchbay/cli/bench"
	"patchbay/cli/console"
	"patchbay/cli/mcp"
	"patchbay/cli/plan"
	"patchbay/cli/settings"
	"patchbay/cli/top"
	"patchbay/ipc/client"
	"patchbay/ipc/message"
	"patchbay/ipc/wire"
)

// Run executes the command that os.Args names and returns its exit code. version is the version of the program.
func Run(version string) int {
	if err := rootCmd(version).Execute(); err != nil {
		if strings.HasPrefix(err.Error(), "unknown command") { // cobra has no error type for it
			err = console.BadInput(err)
		}
		return console.Report(os.Stderr, err)
	}
	return 0
}

func rootCmd(version string) *cobra.Command {
	root := &cobra.Command{
		Use:   "patchbay",
		Short: "Run ComfyUI workflows on one or several devices",
		Long: `Patchbay runs ComfyUI workflows. A daemon (serve) takes them over NATS or a unix socket; a host program can
start a worker itself and talk to it over stdin and stdout; run does one workflow from the shell.

Environment:
  PATCHBAY_NATS_URL  NATS server of the daemon (default ` + wire.DefaultNATS + `)
  PATCHBAY_SOCKET    unix socket of the daemon (default $XDG_RUNTIME_DIR/patchbay.sock)
  PATCHBAY_MODELS    folders laid out like ComfyUI's models folder, separated by ':'
  PATCHBAY_HOME      everything else (default ~/.local/share/patchbay)
  PATCHBAY_CPU       instruction set: generic, avx2, avx512, avx512bf16 or amx (default: the best there is)`,
		Example: `  patchbay demo
  patchbay serve --models ~/ComfyUI/models
  patchbay run flow.json --set 3.seed=7 --out pictures`,
		SilenceErrors: true, SilenceUsage: true, Version: version,
	}
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return console.BadInput(err) })
	root.AddCommand(serveCmd(version), configCmd(), workerCmd(version), hostCmd(version), rankCmd(),
		runCmd(), submitCmd(), jobsCmd(), watchCmd(), getCmd(), cancelCmd(),
		retryCmd(), moveCmd(), deleteCmd(), pauseCmd(), resumeCmd(), freeCmd(), mcp.Command(version), top.Command(),
		nodesCmd(), modelsCmd(), pullCmd(),
		demoCmd(), plan.Command(), bench.Command(version), doctorCmd(version), installNodeCmd(), versionCmd(version))
	return root
}

// ofEach turns cmd into one that calls f for every job named on the command line and prints the answer after the job's
// id. states restricts which jobs are offered as completions. An error does not keep the next job from being asked.
func ofEach(cmd *cobra.Command, f func(ctx context.Context, c client.Client, job string) (answer string, err error),
	states ...message.State,
) *cobra.Command {
	var t settings.Target
	t.Add(cmd.Flags())
	cmd.Args, cmd.ValidArgsFunction = console.Args(cobra.MinimumNArgs(1)), jobIDs(&t, states...)
	cmd.RunE = func(cmd *cobra.Command, jobs []string) error {
		c, err := t.Dial()
		if err != nil {
			return err
		}
		defer console.CloseQuietly(c)
		var failed error
		for _, job := range jobs {
			ctx, stop := asking(cmd.Context())
			answer := ""
			if job, err = client.Find(ctx, c, job); err == nil {
				answer, err = f(ctx, c, job)
			}
			if stop(); err == nil {
				console.Printf(cmd.OutOrStdout(), "%s %s\n", job, answer)
			}
			failed = errors.Join(failed, err)
		}
		return failed
	}
	return cmd
}

// ask sends a daemon a request that it answers at once.
func ask[T any](cmd *cobra.Command, t *settings.Target, question func(context.Context, client.Client) (T, error),
) (T, error) {
	return askWithin(cmd, t, questionTime, question)
}

// askWithin sends a daemon a request that it answers within limit.
func askWithin[T any](cmd *cobra.Command, t *settings.Target, limit time.Duration,
	question func(context.Context, client.Client) (T, error),
) (answer T, err error) {
	c, err := t.Dial()
	if err != nil {
		return answer, err
	}
	defer console.CloseQuietly(c)
	ctx, stop := context.WithTimeout(cmd.Context(), limit)
	defer stop()
	return question(ctx, c)
}

const questionTime = 15 * time.Second

// asking returns a context that ends when one request to a daemon has taken too long.
func asking(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, questionTime)
}
