package sampling

import (
	"fmt"
	"math"
	"slices"
)

// MaxSteps bounds the steps of a schedule, like ComfyUI's widgets.
const MaxSteps = 10000

// Schedule is one way of choosing the sigmas of a run.
type Schedule struct {
	// Name is ComfyUI's name.
	Name string
	// Sigmas returns the sigmas for steps >= 1: descending, usually steps+1 of them with 0 at the end (beta may
	// give fewer, ddim_uniform more).
	Sigmas func(m *ModelSampling, steps int) ([]float32, error)
}

// Schedules returns the nine schedules in ComfyUI's order.
func Schedules() []Schedule {
	ends := func(f func(n int, lo, hi float64) ([]float32, error)) func(*ModelSampling, int) ([]float32, error) {
		return func(m *ModelSampling, n int) ([]float32, error) {
			return f(n, float64(m.SigmaMin()), float64(m.SigmaMax()))
		}
	}
	return []Schedule{
		{"simple", simpleSigmas},
		{"sgm_uniform", func(m *ModelSampling, n int) ([]float32, error) { return normalSigmas(m, n, true) }},
		{"karras", ends(func(n int, lo, hi float64) ([]float32, error) { return Karras(n, lo, hi, 7) })},
		{"exponential", ends(Exponential)},
		{"ddim_uniform", ddimSigmas},
		{"beta", func(m *ModelSampling, n int) ([]float32, error) { return BetaSigmas(m, n, 0.6, 0.6) }},
		{"normal", func(m *ModelSampling, n int) ([]float32, error) { return normalSigmas(m, n, false) }},
		{"linear_quadratic", linearQuadraticSigmas},
		{"kl_optimal", ends(klOptimal)},
	}
}

// ScheduleNames returns the names of Schedules in order.
func ScheduleNames() []string {
	return names(Schedules(), func(s Schedule) string { return s.Name })
}

// MakeSigmas returns the sigmas of the named schedule for a model. Unknown names and step counts outside
// 1..100*MaxSteps (a small denoise multiplies the steps) are errors.
func MakeSigmas(m *ModelSampling, schedule string, steps int) ([]float32, error) {
	if steps < 1 || steps > 100*MaxSteps {
		return nil, fmt.Errorf("steps %d: want 1 to %d, a denoise below 1 included", steps, 100*MaxSteps)
	}
	for _, s := range Schedules() {
		if s.Name == schedule {
			return s.Sigmas(m, steps)
		}
	}
	return nil, fmt.Errorf("scheduler %q is unknown: want one of %q", schedule, ScheduleNames())
}

// KSamplerSigmas returns the sigmas that a KSampler run of the named sampler visits. Samplers that discard the
// penultimate sigma get a schedule with one more step, and denoise < 1 keeps the last steps+1 sigmas of a schedule of
// int(steps/denoise) steps. denoise <= 0 gives an empty list: the latent stays as it is.
func KSamplerSigmas(m *ModelSampling, sampler, schedule string, steps int, denoise float64) ([]float32, error) {
	entry, err := FindSampler(sampler)
	if err != nil {
		return nil, err
	}
	part := denoise <= 0.9999
	sigmas, err := denoiseSigmas(m, schedule, steps, denoise, part, entry.DiscardPenultimate)
	if part {
		sigmas = tail(sigmas, steps+1)
	}
	return sigmas, err
}

// BasicSchedulerSigmas implements the node BasicScheduler: like KSamplerSigmas, but it never discards the penultimate
// sigma, and any denoise below 1 counts, not only those up to 0.9999.
func BasicSchedulerSigmas(m *ModelSampling, schedule string, steps int, denoise float64) ([]float32, error) {
	sigmas, err := denoiseSigmas(m, schedule, steps, denoise, denoise < 1, false)
	return tail(sigmas, steps+1), err
}

// denoiseSigmas returns the schedule whose last sigmas make up a run with steps and denoise. With part it has
// int(steps/denoise) steps; with discard it is made with one more step and loses its penultimate sigma.
func denoiseSigmas(m *ModelSampling, schedule string, steps int, denoise float64, part, discard bool,
) ([]float32, error) {
	switch {
	case steps < 1 || steps > MaxSteps:
		return nil, fmt.Errorf("steps %d: want 1 to %d", steps, MaxSteps)
	case math.IsNaN(denoise):
		return nil, fmt.Errorf("denoise is not a number: want 0 to 1")
	case denoise <= 0:
		return nil, nil
	case part:
		steps = int(min(float64(steps)/denoise, math.MaxInt32))
	}
	if discard {
		steps++
	}
	sigmas, err := MakeSigmas(m, schedule, steps)
	if n := len(sigmas); discard && n >= 2 {
		sigmas = append(sigmas[:n-2], sigmas[n-1])
	}
	return sigmas, err
}

// CutSteps makes KSamplerAdvanced's cut: sigmas up to index last (that one set to 0 with forceFull), without the first
// start. Negative values mean no limit. If start is at or past the end it returns nil: the latent stays as it is. The
// result is a copy.
func CutSteps(sigmas []float32, start, last int, forceFull bool) []float32 {
	out := append([]float32(nil), sigmas...)
	if last >= 0 && last < len(out)-1 {
		out = out[:last+1]
		if forceFull {
			out[last] = 0
		}
	}
	if start >= 0 {
		if start >= len(out)-1 {
			return nil
		}
		out = out[start:]
	}
	return out
}

// tail returns the last n values, or all if there are fewer.
func tail(s []float32, n int) []float32 {
	return s[max(0, len(s)-n):]
}

// simpleSigmas takes every N/steps-th sigma of the table from the top.
func simpleSigmas(m *ModelSampling, steps int) ([]float32, error) {
	n := len(m.sigmas)
	stride := float64(n) / float64(steps)
	out := make([]float32, 0, steps+1)
	for i := range steps {
		out = append(out, m.sigmas[n-1-int(float64(i)*stride)])
	}
	return append(out, 0), nil
}

// normalSigmas spaces timesteps evenly; sgm drops the last of steps+1. Timestep is not the inverse of Sigma for flow
// models, so their end point is shifted twice, but that is how checkpoints are sampled in practice.
func normalSigmas(m *ModelSampling, steps int, sgm bool) ([]float32, error) {
	start, end := m.Timestep(m.SigmaMax()), m.Timestep(m.SigmaMin())
	switch {
	case sgm:
		return append(curve(steps+1, start, end, m.Sigma)[:steps], 0), nil
	case math.Abs(float64(m.Sigma(end))) <= 1e-5:
		return curve(steps+1, start, end, m.Sigma), nil
	}
	return append(curve(steps, start, end, m.Sigma), 0), nil
}

// ddimSigmas walks up the table in strides of N/steps from index 1 and reverses the result, so its length may differ
// from steps+1 and its first sigma is usually below the maximum.
func ddimSigmas(m *ModelSampling, steps int) ([]float32, error) {
	n := len(m.sigmas)
	var up []float32
	if math.Abs(float64(m.sigmas[1])) <= 1e-5 {
		steps++
	} else {
		up = append(up, 0)
	}
	for i := 1; i < n; i += max(n/steps, 1) {
		up = append(up, m.sigmas[i])
	}
	slices.Reverse(up)
	return up, nil
}

// linearQuadraticSigmas is Mochi's schedule: half the steps linear down to 1-0.025, then a quadratic to 0 with the
// same slope, times the largest sigma.
func linearQuadraticSigmas(m *ModelSampling, steps int) ([]float32, error) {
	top := m.SigmaMax()
	if steps == 1 {
		return []float32{top, 0}, nil
	}
	const threshold = 0.025
	linear := float64(steps / 2)
	rest := float64(steps) - linear
	diff := linear - threshold*float64(steps)
	quad := diff / (linear * (rest * rest))
	slope := threshold/linear - 2*diff/(rest*rest)
	offset := quad * (linear * linear)
	out := make([]float32, 0, steps+1)
	for i := range steps {
		v := float64(i) * threshold / linear
		if f := float64(i); f >= linear {
			v = float64(quad*(f*f)) + float64(slope*f) + offset
		}
		out = append(out, mul(float32(1-v), top))
	}
	return append(out, 0), nil
}

// klOptimal is tan of a line between the arctangents of the ends (Sabour et al. 2024, "Align Your Steps", section 4).
// It returns an error for a single step, which would divide by zero.
func klOptimal(steps int, lo, hi float64) ([]float32, error) {
	if steps < 2 {
		return nil, fmt.Errorf("scheduler %q needs 2 steps or more, got %d", "kl_optimal", steps)
	}
	low, high := float32(math.Atan(lo)), float32(math.Atan(hi))
	out := make([]float32, steps+1)
	for i := range steps {
		w := float32(i) / float32(steps-1)
		out[i] = float32(math.Tan(float64(mul(w, low) + mul(1-w, high))))
	}
	return out, nil
}
