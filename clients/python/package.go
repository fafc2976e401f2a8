// Package python embeds the Python client, which `patchbay install-node` writes beside the nodes for ComfyUI.
package python

import "embed"

// Files has the client in the folder patchbay.
//
//go:embed patchbay/*.py
var Files embed.FS
