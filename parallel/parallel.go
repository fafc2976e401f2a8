// Package parallel runs the denoise loop of one request over ranks.
//
// Pool.Sample runs a request (parallel/request) and is the only way into the denoise loop (parallel/denoise). Pool.Do
// gives the device to text encoders and the VAE (Workspace.Decode splits a decode over ranks). The package knows the
// contracts models/dit, models/sampling and models/vae, but no model family. parallel/plan defines what a plan is,
// parallel/forecast what it costs, parallel/rank what a rank does, and parallel/comm how ranks exchange data.
//
// In the order of a run: pool.go gives places (places.go) to a request, choose.go resolves its plan for them, load.go
// makes the weights resident in the processes of the ranks, leader.go assembles the team (parallel/leader) and starts
// the loop. autoencoder.go is the work that is not the loop.
package parallel
