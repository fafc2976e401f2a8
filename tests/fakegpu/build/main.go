// Command build builds the fake libcuda.so.1 and prints its folder, for scripts.
package main

import (
	"fmt"
	"os"

	"patchbay/tests/fakegpu"
)

func main() {
	dir, err := fakegpu.Build(".")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	_, _ = fmt.Fprintln(os.Stdout, dir)
}
