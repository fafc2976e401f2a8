// Package comfyui embeds the node package for ComfyUI: Python files to be installed into its custom_nodes folder.
package comfyui

import "embed"

// Files is the node package as it is installed, below its own root.
//
//go:embed *.py pyproject.toml README.md client/*.py web/*.js workflows/*.json
var Files embed.FS
