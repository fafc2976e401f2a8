// Package parallel runs the denoise loop of one request over ranks.
//
// Request (request.go) is the only entrance, Engine.Sample the only door; Engine.Do lends the device for text encoders
// and VAE (Workspace.Decode splits a decode). The package knows the contracts models/dit, models/sampling and
// models/vae, never a family. What a plan is, is in parallel/plan, what it costs in parallel/forecast, what a rank
// does in parallel/rank, how ranks exchange in parallel/comm; here is who asks them.
//
// In the order of a run: validate.go refuses, choose.go finds the plan, engine.go takes the ranks and has
// their weights resident, denoise.go opens a session and starts one sampler per part of the latent (latent_part.go:
// everything, or one patch of a pipeline), layout.go orders the latent's elements by token, mixing.go blends entries
// and guidance in x0 space, cache.go answers evaluations without the network, evaluator.go brings the parts'
// evaluations into one order, session.go cuts each into commands for the ranks of a team (team.go) and puts their
// answers together, watchdog.go ends what stands still.
package parallel
