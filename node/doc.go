// Package node holds ComfyUI's node classes, a file for each group.
package node
