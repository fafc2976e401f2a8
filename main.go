// Command patchbay runs ComfyUI workflows on one or several devices: as a daemon, as a worker process of a host
// program, or once from the shell.
package main

import (
	"os"

	"patchbay/cli"
)

// version is set by the linker (-X main.version=...).
var version = "dev"

func main() { os.Exit(cli.Run(version)) }
