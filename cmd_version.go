package main

import (
	"crypto/sha256"
	"encoding/hex"
	"regexp"
	"runtime"
	"strings"

	"github.com/spf13/cobra"

	"patchbay/ipc/message"
	"patchbay/node/graph"
)

func versionCmd() *cobra.Command {
	return &cobra.Command{
		Use:     "version",
		Short:   "Show version, protocol and compatibility",
		Example: "  patchbay version",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			printf(cmd.OutOrStdout(), "patchbay %s\nprotocol v%d\ncomfyui  %s\ngo       %s %s/%s\ncpu      %s\n", version, message.ProtocolVersion, graph.Compat,
				strings.TrimPrefix(runtime.Version(), "go"), runtime.GOOS, runtime.GOARCH, strings.Join(cpuLevels(), " "))
			return nil
		},
	}
}

// semantic turns the version of the build into the form that NATS services need: 1.2.3 with an optional suffix.
func semantic(v string) string {
	plain := strings.TrimPrefix(v, "v")
	if regexp.MustCompile(`^\d+\.\d+\.\d+(-[0-9A-Za-z.-]+)?$`).MatchString(plain) {
		return plain
	}
	return "0.0.0-" + regexp.MustCompile(`[^0-9A-Za-z-]`).ReplaceAllString(orElse(plain, "dev"), "-")
}

// shortName is a file name that stands for a path.
func shortName(path string) string {
	sum := sha256.Sum256([]byte(path))
	return hex.EncodeToString(sum[:4])
}
