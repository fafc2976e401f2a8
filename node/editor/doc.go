// Package editor turns a graph in the format of ComfyUI's editor into API format, as the editor does when a prompt is
// queued: nodes and links become inputs by name, and what exists in the editor only (reroutes, primitives, notes,
// muted and bypassed nodes, subgraphs) is resolved. It knows classes only by their object_info entries.
//
// Reading order: canvas.go (the file format), widgets.go (values by name), resolve.go (where a link ends), convert.go.
// The reference is the source of ComfyUI's frontend 1.49 (executionUtil.ts, ExecutableNodeDTO.ts, SubgraphNode.ts).
package editor
