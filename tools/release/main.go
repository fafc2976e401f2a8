// Command release writes the OCI image of a release as a folder in OCI's image layout, without a container engine:
// release VERSION EPOCH FOLDER amd64=LAYER.tar arm64=LAYER.tar. The bits depend on the arguments and layers only.
package main

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

func main() {
	if err := write(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "release:", err)
		os.Exit(1)
	}
}

func write(args []string) error {
	if len(args) < 4 {
		return errors.New("want VERSION EPOCH FOLDER ARCHITECTURE=LAYER.tar...")
	}
	seconds, err := strconv.ParseInt(args[1], 10, 64)
	if err != nil {
		return fmt.Errorf("EPOCH: %w", err)
	}
	index := mutate.IndexMediaType(empty.Index, types.OCIImageIndex)
	for _, arg := range args[3:] {
		architecture, layer, _ := strings.Cut(arg, "=")
		image, err := imageOf(architecture, layer, args[0], time.Unix(seconds, 0).UTC())
		if err != nil {
			return fmt.Errorf("%s: %w", arg, err)
		}
		index = mutate.AppendManifests(index, mutate.IndexAddendum{Add: image, Descriptor: v1.Descriptor{
			Platform: &v1.Platform{OS: "linux", Architecture: architecture},
		}})
	}
	// The layout holds one index, named by the version, with an image for each architecture.
	folder, err := layout.Write(args[2], empty.Index)
	if err != nil {
		return err
	}
	return folder.AppendIndex(index, layout.WithAnnotations(map[string]string{
		"org.opencontainers.image.ref.name": args[0],
	}))
}

// imageOf makes the image of one architecture.
func imageOf(architecture, file, version string, made time.Time) (v1.Image, error) {
	layer, err := tarball.LayerFromFile(file, tarball.WithMediaType(types.OCILayer))
	if err != nil {
		return nil, err
	}
	image, err := mutate.Append(mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1),
		types.OCIConfigJSON), mutate.Addendum{Layer: layer, History: v1.History{
		CreatedBy: "tools/release.sh", Created: v1.Time{Time: made},
	}})
	if err != nil {
		return nil, err
	}
	config, err := image.ConfigFile()
	if err != nil {
		return nil, err
	}
	config = config.DeepCopy()
	config.OS, config.Architecture, config.Created = "linux", architecture, v1.Time{Time: made}
	config.Config = v1.Config{
		Entrypoint: []string{"/usr/bin/patchbay"},
		Cmd:        []string{"serve", "--config", "/etc/patchbay/patchbay.yaml"},
		User:       "65532:65532",
		WorkingDir: "/var/lib/patchbay",
		Volumes:    map[string]struct{}{"/var/lib/patchbay": {}},
		Env: []string{
			"PATH=/usr/bin", "HOME=/var/lib/patchbay", "PATCHBAY_HOME=/var/lib/patchbay",
			"PATCHBAY_SOCKET=/tmp/patchbay.sock",
			// NVIDIA's container runtime puts its driver into one of these
			"LD_LIBRARY_PATH=/usr/lib/x86_64-linux-gnu:/usr/lib/aarch64-linux-gnu:/usr/lib64",
			"NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_DRIVER_CAPABILITIES=compute,utility",
		},
		Labels: map[string]string{
			"org.opencontainers.image.title": "patchbay", "org.opencontainers.image.version": version,
			"org.opencontainers.image.licenses": "Apache-2.0",
		},
	}
	return mutate.ConfigFile(image, config)
}
