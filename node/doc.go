// Package node understands ComfyUI workflows: the graph, the catalogue of node classes, validation, execution with caches, pictures in and out.
//
// A Workflow is parsed from an API-format graph, Validate checks it against a Catalogue without touching a device, and a Runner walks it from its output
// nodes, taking unchanged subgraphs from its cache. MODEL, CLIP and VAE are handles: loader nodes read file headers only; weights move when a
// node needs them. Sampling nodes are lowered (sample.go) to one parallel.Request, the only entrance to the denoise loop; everything else that
// needs a device runs inside parallel.Engine.Do.
//
// Names, order, defaults, error texts and numerics are ComfyUI's (0.8.0); docs/comfyui.md lists every deliberate difference. Values inside a
// graph are host data: pictures [B, Y, X, C] f32 in 0..1, latents [B, C, Y, X] f32 in the VAE's space. Nothing here writes into the
// output folder: nodes return Outputs, and the caller stages and renames them (Commit).
package node
