//go:build calibrate

package forecast

import (
	"encoding/json"
	"math"
	"testing"
)

// TestCalibrate fits the calibration of every kind of device to the rows marked fit, by coordinate descent on the mean
// of |log(predicted/published)| with a weak pull (0.02 per factor e) to the start, because few rows do not determine
// seven numbers, and prints it for testdata/published.json. No rate exceeds the data sheet. Run: go test -tags
// calibrate -run TestCalibrate -v ./parallel/forecast
func TestCalibrate(t *testing.T) {
	p := readPublished(t)
	limits := map[string]calibration{ // dense bf16 peak; one direction of the link
		"A100": {GEMM: 312e12, Attention: 312e12, Bandwidth: 300e9, AllToAll: 1, Across: 600e9},
		"L40":  {GEMM: 181e12, Attention: 181e12, Bandwidth: 26e9, AllToAll: 1, Across: 26e9},
		"H100": {GEMM: 989e12, Attention: 989e12, Bandwidth: 450e9, AllToAll: 1, Across: 1},
	}
	for device, cal := range p.Devices {
		limit, start := limits[device], cal
		loss := func(c calibration) float64 {
			p.Devices[device] = c
			sum, n := 0.0, 0
			for _, r := range p.Rows {
				if r.Device == device && r.Fit {
					sum += math.Abs(math.Log(p.predict(t, r) / r.Seconds))
					n++
				}
			}
			sum /= float64(n)
			pull := []float64{
				c.GEMM / start.GEMM, c.Attention / start.Attention, c.Launch / start.Launch, c.Bandwidth / start.Bandwidth,
				c.AllToAll / start.AllToAll, c.Latency / start.Latency,
			}
			for _, v := range pull {
				sum += 0.02 * math.Abs(math.Log(v))
			}
			return sum
		}
		best := loss(cal)
		first := best
		for _, factor := range []float64{2, 1.4, 1.2, 1.08, 1.03, 1.01} {
			for moved := true; moved; {
				moved = false
				for i := range 7 {
					for _, f := range []float64{factor, 1 / factor} {
						try := cal
						v := []*float64{
							&try.GEMM, &try.Attention, &try.Launch, &try.Bandwidth, &try.AllToAll,
							&try.Latency, &try.Across,
						}[i]
						*v *= f
						if try.GEMM > limit.GEMM || try.Attention > limit.Attention || try.Bandwidth > limit.Bandwidth ||
							try.AllToAll > limit.AllToAll || try.Across > limit.Across {
							continue
						}
						if l := loss(try); l < best-1e-5 {
							best, cal, moved = l, try, true
						}
					}
				}
			}
		}
		p.Devices[device] = cal
		text, err := json.Marshal(cal)
		if err != nil {
			t.Fatal(err)
		}
		t.Logf("%q: %s  mean |log| %.3f (before %.3f)", device, text, best, first)
	}
}
