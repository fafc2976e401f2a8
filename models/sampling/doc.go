// Package sampling implements everything between two evaluations of a diffusion model: what a noise level means to a
// model (ModelSampling), which noise levels a run visits (schedules), how to get from one level to the next (samplers)
// and where the random numbers come from (Generator, BrownianTree, Draws).
//
// It works on plain float32 slices and knows nothing of tensors, devices or other processes. A sampler is the paper's
// loop written once against Run: it sees only the elements it owns, reduces over the whole latent with Run.Norm and
// takes random numbers from Run.Noise, so one instance per part of the latent gives the same bits as a single instance
// for all of it.
//
// Terms: a schedule makes sigmas; a sampler is an update rule; denoised (x0) is the estimate of the clean latent; a
// step is one interval of sigmas; an evaluation is one call of Run.Denoise.
//
// Numbers follow ComfyUI 0.33.0 with torch on a CPU: scalars are float32 wherever torch keeps a 0-dimensional float32
// tensor, every product is rounded before it is added (no fused multiply-add), and the generator is torch's MT19937
// with its Box-Muller order. Options are float64, as in Python, and become float32 where they meet a tensor.
package sampling
