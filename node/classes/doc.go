// Package classes holds ComfyUI's node classes, a file for each group: a row of the catalogue and a function for each.
// It knows how to run none of them: package graph calls the functions, package value holds what they work on.
//
// Sampling nodes are lowered (sample.go) to one parallel.Request, the only entrance to the denoise loop;
// everything else that needs a device runs inside parallel.Engine.Do. Numerics are those of ComfyUI 0.8.0, which
// 0.33.0 kept.
package classes
