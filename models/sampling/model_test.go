package sampling

import "testing"

// TestMaxDenoiseAtAndAboveTheTable checks ComfyUI's rule (comfy/samplers.py, Sampler.max_denoise): a run starts from
// pure noise where its first sigma is close to the table's maximum by 1e-5, or above it.
func TestMaxDenoiseAtAndAboveTheTable(t *testing.T) {
	m, err := NewFlow(1, 1)
	if err != nil || m.SigmaMax() != 1 {
		t.Fatalf("a flow model without shift: %v, want sigmas up to 1", err)
	}
	for sigma, want := range map[float32]bool{0.5: false, 0.9999: false, 0.999995: true, 1: true, 1.001: true, 80: true} {
		if got := m.MaxDenoise(sigma); got != want {
			t.Errorf("sigma %v is pure noise: %v, want %v", sigma, got, want)
		}
	}
}
