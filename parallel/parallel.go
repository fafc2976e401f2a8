// Package parallel runs the denoise loop of one request over ranks.
//
// Leader.Sample runs a request (parallel/request) and is the only way into the denoise loop (parallel/denoise). Leader.Do
// lends the device to text encoders and the VAE (Workspace.Decode splits a decode over ranks). The package knows the
// contracts models/dit, models/sampling and models/vae, but no model family. parallel/plan defines what a plan is,
// parallel/forecast what it costs, parallel/rank what a rank does, and parallel/comm how ranks exchange data.
//
// In the order of a run: choose.go resolves the plan, load.go makes the weights resident in the processes of the ranks,
// leader.go assembles the team (parallel/leader) and starts the loop. beside.go shares the places among requests that
// run side by side.
package parallel
