// Package classes defines ComfyUI's node classes, one file per group: for each class its entry in the catalogue and the
// function that runs it. Package graph calls these functions, and package value defines what they work on.
//
// Sampling nodes are lowered (sample.go) to one request.Request, the only way into the denoise loop; everything else
// that needs a device runs inside parallel.Pool.Do. Numerics are those of ComfyUI 0.33.0.
package classes
