// Package parallel runs the denoise loop of one request over ranks.
//
// Request (request.go) is the only entrance, Engine.Sample the only door; Engine.Do lends the device for text encoders and VAE (Local.Decode splits a
// decode). The package knows the contracts models/dit, models/sampling and models/vae, never a family.
//
// Host side, in the order of a run: validate.go refuses, denoise.go opens a session and starts one sampler per share of the latent (share.go: everything,
// or one patch of a pipeline), layout.go orders the latent's elements by token, mixing.go blends entries and guidance in x0 space, evaluator.go brings the
// shares' evaluations into one order, team.go cuts commands for the ranks and puts their answers together.
//
// Rank side: rank.go takes commands (plain values, command.go), evaluate.go runs a stage's blocks, sequence.go is attention over split tokens (Ulysses,
// ring), kvstore.go the keys and values of a pipeline, fold.go stages of skip-connected models. comm.go says what ranks exchange, local.go does it inside
// one process and checks both sides. baton.go makes interleavings repeatable in tests. group.go starts every goroutine and turns panics into errors.
//
// Without tensors: plan.go and mesh.go (what is split), ranges.go (how), simulate.go, forecast_*.go and planner.go (what it costs), timeline.go (drawings).
package parallel
