//go:build calibrate

package forecast

import (
	"encoding/json"
	"math"
	"testing"
)

// TestCalibrate fits the calibration of every kind of device to the rows marked fit, by descent along single numbers
// and pairs of rates on the mean of |log(predicted/published)| with a weak pull (0.02 per factor e) to the start,
// because few rows do not determine eight numbers, and prints it for testdata/published.json. No rate exceeds the data
// sheet. Run: go test -tags calibrate -run TestCalibrate/L40 -v ./parallel/forecast
func TestCalibrate(t *testing.T) {
	p := readPublished(t)
	for device := range p.Devices {
		t.Run(device, func(t *testing.T) {
			first, best := p.calibrate(t, device)
			text, err := json.Marshal(p.Devices[device])
			if err != nil {
				t.Fatal(err)
			}
			t.Logf("%q: %s  mean |log| %.3f (before %.3f)", device, text, best, first)
		})
	}
}

// numbers returns what is fitted, rates and corrections of shapes first.
func (c *calibration) numbers() []*float64 {
	return []*float64{
		&c.GEMM, &c.Attention, &c.ProductRows, &c.Launch, &c.Bandwidth, &c.AllToAll, &c.Latency, &c.Across,
	}
}

// within reports whether the rates are at most those of data sheets: dense bf16 peak, and one direction of the link.
func (c *calibration) within() bool {
	limit := map[string]calibration{
		"A100-80-nvlink": {GEMM: 312e12, Bandwidth: 300e9, Across: 600e9},
		"L40-pcie":       {GEMM: 181e12, Bandwidth: 26e9, Across: 26e9},
		"H100-nvlink":    {GEMM: 989e12, Bandwidth: 450e9, Across: 1},
		"H20-nvlink":     {GEMM: 148e12, Bandwidth: 450e9, Across: 1},
		"5090-pcie":      {GEMM: 250e12, Bandwidth: 52e9, Across: 52e9}, // 209.5 at 2.4 GHz, and it runs faster
	}[c.Cluster]
	return c.GEMM <= limit.GEMM && c.Attention <= limit.GEMM && c.Bandwidth <= limit.Bandwidth && c.AllToAll <= 1 &&
		c.Across <= limit.Across
}

// loss returns how far the predictions of the fitted rows are off with c, and how far c is from start.
func (p *publishedTable) loss(t *testing.T, device string, c, start calibration) (sum float64) {
	p.Devices[device] = c
	n := 0.0
	for _, r := range p.Rows {
		if r.Device == device && r.Fit {
			sum += math.Abs(math.Log(p.predict(t, r) / r.Seconds))
			n++
		}
	}
	sum /= n
	from := start.numbers()
	for i, v := range c.numbers() {
		if *v > 0 {
			sum += 0.02 * math.Abs(math.Log(*v / *from[i]))
		}
	}
	return sum
}

// calibrate replaces the calibration of a device by the one fitted, and returns the loss before and after.
func (p *publishedTable) calibrate(t *testing.T, device string) (first, best float64) {
	start := p.Devices[device]
	cal := start
	best = p.loss(t, device, cal, start)
	first = best
	for _, factor := range []float64{2, 1.4, 1.2, 1.08, 1.03, 1.01} {
		for moved := true; moved; {
			moved = false
			for _, m := range moves(len(cal.numbers()), factor) {
				try := cal
				for i, f := range m {
					*try.numbers()[i] *= f
				}
				if !try.within() {
					continue
				}
				if l := p.loss(t, device, try, start); l < best-1e-5 {
					best, cal, moved = l, try, true
				}
			}
		}
	}
	p.Devices[device] = cal
	return first, best
}

// moves returns by what to multiply which of n numbers: each alone, and the first three in pairs, since one makes up
// for another.
func moves(n int, factor float64) (out []map[int]float64) {
	for i := range n {
		for _, f := range []float64{factor, 1 / factor} {
			out = append(out, map[int]float64{i: f})
			for j := range min(i, 3) {
				if i < 3 {
					out = append(out, map[int]float64{i: f, j: factor}, map[int]float64{i: f, j: 1 / factor})
				}
			}
		}
	}
	return out
}
