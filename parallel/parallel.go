// Package parallel runs the denoise loop of one request over ranks.
//
// Request (request.go) is the only entrance, Engine.Sample the only door. It knows the contracts models/dit and models/sampling, never a family.
package parallel
