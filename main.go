// Command patchbay runs ComfyUI workflows on one or several devices: as a daemon, as a worker of a host, or once from the shell.
//
// One file per command (cmd_*.go); flags.go the flags that several share; everything else is in the packages below.
package main

import (
	"io"
	"os"

	"github.com/spf13/cobra"

	"patchbay/cli/bench"
	"patchbay/cli/console"
	"patchbay/cli/plan"
	"patchbay/ipc/wire"
)

// version is set by the linker (-X main.version=...).
var version = "dev"

func main() { os.Exit(run(os.Args[1:], os.Stdin, os.Stdout, os.Stderr)) }

// run is main without the process: it returns the exit code.
func run(args []string, in io.Reader, out, errs io.Writer) int {
	root := rootCmd()
	root.SetArgs(args)
	root.SetIn(in)
	root.SetOut(out)
	root.SetErr(errs)
	err := root.Execute()
	if err == nil {
		return 0
	}
	return console.Report(errs, err)
}

func rootCmd() *cobra.Command {
	root := &cobra.Command{
		Use:   "patchbay",
		Short: "Run ComfyUI workflows on one or several devices",
		Long: `Patchbay runs ComfyUI workflows. A daemon (serve) takes them over NATS or a unix socket; a host program can start a worker
itself and talk to it over stdin and stdout; run does one workflow from the shell.

Environment:
  PATCHBAY_NATS_URL  NATS server of the daemon (default ` + wire.DefaultNATS + `)
  PATCHBAY_SOCKET    unix socket of the daemon (default $XDG_RUNTIME_DIR/patchbay.sock)
  PATCHBAY_MODELS    folders laid out like ComfyUI's models folder, separated by ':'
  PATCHBAY_HOME      everything else (default ~/.local/share/patchbay)
  PATCHBAY_CPU       instruction set: generic, avx2, avx512 or avx512bf16 (default: the best there is)`,
		Example: `  patchbay demo
  patchbay serve --models ~/ComfyUI/models
  patchbay run flow.json --set 3.seed=7 --out pictures`,
		SilenceErrors: true, SilenceUsage: true,
	}
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return console.BadInput(err) })
	root.AddCommand(serveCmd(), workerCmd(), runCmd(), submitCmd(), jobsCmd(), watchCmd(), getCmd(), cancelCmd(), retryCmd(), topCmd(), nodesCmd(), modelsCmd(),
		demoCmd(), plan.Command(), bench.Command(), doctorCmd(), installNodeCmd(), versionCmd())
	return root
}
