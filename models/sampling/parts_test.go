package sampling

import (
	"sync"
	"testing"
)

// meeting is a barrier for Run.Norm: it sums the values of all parts and returns the total to each.
type meeting struct {
	mu      sync.Mutex
	all     *sync.Cond
	parts   int
	arrived int
	round   int
	sum     float64
	results map[int]float64
}

func newMeeting(parts int) *meeting {
	m := &meeting{parts: parts, results: map[int]float64{}}
	m.all = sync.NewCond(&m.mu)
	return m
}

func (m *meeting) total(v float64) (float64, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	round := m.round
	m.sum += v
	m.arrived++
	if m.arrived == m.parts {
		m.results[round] = m.sum
		m.sum, m.arrived = 0, 0
		m.round++
		m.all.Broadcast()
	}
	for m.round == round {
		m.all.Wait()
	}
	return m.results[round], nil
}

// runParts runs the method concurrently over parts of the latent that end at the given bounds, and joins the results.
func runParts(t *testing.T, e Method, m *ModelSampling, sigmas []float32, opts map[string]any, n int,
	bounds []int,
) []float32 {
	t.Helper()
	noise, stream, err := PrepareNoise(5, 1, n, nil)
	if err != nil {
		t.Fatal(err)
	}
	draws, err := NewDraws(e.Noise, 5, n, sigmas, stream)
	if err != nil {
		t.Fatal(err)
	}
	options, err := e.NewOptions(opts)
	if err != nil {
		t.Fatal(err)
	}
	start := m.NoiseScaling(sigmas[0], noise, make([]float32, n), m.MaxDenoise(sigmas[0]))
	sums := newMeeting(len(bounds))
	results, errs := make([][]float32, len(bounds)), make([]error, len(bounds))
	var wait sync.WaitGroup
	from := 0
	for i, to := range bounds {
		lo := from
		from = to
		wait.Go(func() {
			d := &denoiser{positive: 0.3, negative: -0.2, cfg: 3, uncond: e.NeedsUncond}
			r := &Run{
				Sigmas: append([]float32(nil), sigmas...), X: append([]float32(nil), start[lo:to]...),
				Options: options, Model: m, Denoise: d.denoise, Norm: sums.total, Elements: n,
				Noise: func(draw int, s0, s1 float32) ([]float32, error) {
					v, err := draws.Draw(draw, s0, s1)
					if err != nil {
						return nil, err
					}
					return v[lo:to], nil
				},
			}
			errs[i] = e.Sample(r)
			m.InverseNoiseScaling(r.Sigmas[len(r.Sigmas)-1], r.X)
			results[i] = r.X
		})
	}
	wait.Wait()
	for _, err := range errs {
		if err != nil {
			t.Fatalf("%s: %v", e.Name, err)
		}
	}
	return joined(results)
}

func TestPartsGiveTheBitsOfTheWhole(t *testing.T) {
	const n = 100
	churn := map[string]any{"s_churn": 4.0, "s_noise": 1.01}
	entries := append(Samplers(), AlternativeEulerCFGPP())
	for _, model := range []string{"sd3", "pixart_alpha", "hunyuandit12"} {
		m := goldenModel(t, model)
		sigmas, err := MakeSigmas(m, "normal", 6)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range entries {
			var opts map[string]any
			if e.Noise == Continued {
				opts = churn
			}
			want := runParts(t, e, m, sigmas, opts, n, []int{n})
			got := runParts(t, e, m, sigmas, opts, n, []int{37, 38, n})
			d, at := relative(got, want)
			switch {
			case e.Synchronous && d > 1e-6:
				t.Errorf("%s/%s: parts differ by %.3g at %d; the barrier sums in another order, bound 1e-6", e.Name, model, d, at)
			case !e.Synchronous && d != 0:
				t.Errorf("%s/%s: parts differ by %.3g at %d, want the same bits", e.Name, model, d, at)
			}
		}
	}
}
