// Package comfyui embeds the nodes for ComfyUI: Python files to be installed into its custom_nodes folder.
package comfyui

import "embed"

// Files is the node package as it is installed, except for its folder client, which is package clients/python.
//
//go:embed *.py pyproject.toml README.md web/*.js workflows/*.json
var Files embed.FS
