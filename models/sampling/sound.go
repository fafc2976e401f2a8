package sampling

import (
	"fmt"
	"math"
)

// WithSound returns the same flow time line for videos beside which a sound is denoised that has a shift of its own, as
// in MiniMax-H3. Samplers know one schedule, the video's. They carry the sound times SoundScale, on which that schedule
// is right for it: for the schedule s of the sound beside t of the video, scale*x*s/t is x at the sound's own sigma.
func (m *ModelSampling) WithSound(shift float64) (*ModelSampling, error) {
	if m.line != lineFlow {
		return nil, fmt.Errorf("a shift of the sound: want the time line of a flow model beside it")
	}
	if !(shift > 0) || math.IsInf(shift, 1) {
		return nil, fmt.Errorf("shift of the sound %v: want a number above 0", shift)
	}
	out := *m
	out.soundShift = shift
	return &out, nil
}

// SoundShift returns the shift of the sound's schedule; 0: it is the video's.
func (m *ModelSampling) SoundShift() float64 { return m.soundShift }

// SoundScale returns what samplers carry the sound times, 1 if its schedule is the video's.
func (m *ModelSampling) SoundScale() float32 {
	if m.soundShift == 0 {
		return 1
	}
	return float32(m.shift / m.soundShift)
}

// SoundSigma returns the sigma of the sound when the video has sigma.
func (m *ModelSampling) SoundSigma(sigma float32) float32 {
	if m.soundShift == 0 {
		return sigma
	}
	base := sigma / (float32(m.shift) + mul(sigma, float32(1-m.shift)))
	return mul(float32(m.soundShift), base) / (1 + mul(float32(m.soundShift-1), base))
}

// SoundInput turns the sound that a sampler carries at a sigma of the video into the network's input, in place.
func (m *ModelSampling) SoundInput(x []float32, sigma float32) {
	sigma = max(sigma, leastSigma)
	carry := m.SoundSigma(sigma) / sigma
	for i := range x {
		x[i] *= carry
	}
}

// SoundOutput turns the network's output for such an input into the velocity of the sound that the sampler carries, in
// place.
func (m *ModelSampling) SoundOutput(out, input []float32, sigma float32) {
	scale := m.SoundScale()
	rate := 1 + mul(scale-1, m.SoundSigma(max(sigma, leastSigma)))
	for i := range out {
		out[i] = mul(1-scale, input[i]) + mul(rate, out[i])
	}
}

// leastSigma keeps divisions finite.
const leastSigma = 1e-6
