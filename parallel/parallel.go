// Package parallel runs the denoise loop of one request over ranks.
//
// Leader.Sample runs a Request (request.go) and is the only way into the denoise loop. Leader.Do lends the device to
// text encoders and the VAE (Workspace.Decode splits a decode over ranks). The package knows the contracts models/dit,
// models/sampling and models/vae, but no model family. parallel/plan defines what a plan is, parallel/forecast what it
// costs, parallel/rank what a rank does, and parallel/comm how ranks exchange data. This package is the leader that
// drives them.
//
// In the order of a run: validate.go checks the request, choose.go resolves the plan, engine.go acquires the ranks and
// makes their weights resident, denoise.go opens a session and starts one sampler per part of the latent
// (latent_part.go: all of it, or one patch of a pipeline), layout.go orders the latent's elements by token, mixing.go
// blends entries and guidance in x0 space, cache.go answers evaluations without the network, evaluator.go puts the
// evaluations of all parts in order, session.go cuts each into commands for the ranks of a team (team.go) and assembles
// their replies, watchdog.go fails requests whose ranks make no progress.
package parallel
