// Package graph understands ComfyUI workflows: the graph, the catalogue of node classes, validation, and execution with
// caches. It knows no node class and no format of picture files.
//
// A Workflow is parsed from an API-format graph (workflow.go), Validate checks it against a Catalogue without touching
// a device (catalogue.go, validate.go), and a Runner walks it from its output nodes (runner.go, order.go), taking
// unchanged subgraphs from its cache (signature.go). Exec runs one node for a client (exec.go, leases.go). The
// function of a node gets a Call (call.go, limits.go).
//
// Names, order, defaults and error texts are ComfyUI's (0.33.0); docs/comfyui.md lists the deliberate differences.
// Nothing here writes into the output folder: nodes return outputs, and the caller stages and renames them.
package graph
