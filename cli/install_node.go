package cli

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"patchbay/cli/console"
	"patchbay/clients/python"
	"patchbay/comfyui"
)

// nodeFolder is the name of the node package in custom_nodes; nodeMark is a file by which it is recognized.
const (
	nodeFolder = "patchbay"
	nodeMark   = "proxy.py"
)

func installNodeCmd() *cobra.Command {
	return &cobra.Command{
		Use:   "install-node COMFYUI",
		Short: "Put the node package into a ComfyUI",
		Long: `install-node writes the node package, with the Python client, into custom_nodes/patchbay of a ComfyUI folder,
in the place of an older one. It needs nothing from elsewhere. ComfyUI has the nodes after its next start;
docs/comfyui-node.md says how to use them.`,
		Example: "  patchbay install-node ~/ComfyUI",
		Args:    console.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			place, err := installNode(args[0])
			if err != nil {
				return err
			}
			console.Printf(cmd.OutOrStdout(), "installed in %s\nstart ComfyUI again, and `patchbay serve --comfyui %s`\n",
				place, args[0])
			return nil
		},
	}
}

// installNode writes the package into a ComfyUI folder and returns its path. That path holds either the old files or
// the new ones, never a mix.
func installNode(tree string) (string, error) {
	nodes := filepath.Join(tree, "custom_nodes")
	if _, err := os.Stat(filepath.Join(tree, "comfy")); err != nil {
		return "", console.BadInput(fmt.Errorf("%s is no ComfyUI folder: there is no comfy in it", tree))
	}
	place := filepath.Join(nodes, nodeFolder)
	_, err := os.Stat(place)
	old := err == nil
	if _, err := os.Stat(filepath.Join(place, nodeMark)); old && err != nil {
		return "", console.BadInput(fmt.Errorf("%s exists and is not this package: move it away first", place))
	}
	if err := os.MkdirAll(nodes, 0o755); err != nil {
		return "", err
	}
	fresh, err := os.MkdirTemp(nodes, ".patchbay-")
	if err != nil {
		return "", err
	}
	defer func() { _ = os.RemoveAll(fresh) }() // removes the old files too, which are moved there
	next := filepath.Join(fresh, nodeFolder)
	client, err := fs.Sub(python.Files, "patchbay")
	if err != nil {
		return "", err
	}
	for dir, files := range map[string]fs.FS{next: comfyui.Files, filepath.Join(next, "client"): client} {
		if err := os.CopyFS(dir, files); err != nil {
			return "", err
		}
	}
	if old {
		if err := os.Rename(place, filepath.Join(fresh, "old")); err != nil {
			return "", err
		}
	}
	if err := os.Rename(next, place); err != nil {
		if old {
			err = errors.Join(err, os.Rename(filepath.Join(fresh, "old"), place))
		}
		return "", err
	}
	return place, nil
}
