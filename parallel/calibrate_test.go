//go:build calibrate

package parallel

import (
	"encoding/json"
	"math"
	"testing"
)

// TestCalibrate fits the calibration of every kind of device to the rows marked fit, by coordinate descent on the mean of |log(predicted/published)|, and
// prints it for testdata/published.json: go test -tags calibrate -run TestCalibrate -v ./parallel
func TestCalibrate(t *testing.T) {
	p := readPublished(t)
	for device, cal := range p.Devices {
		loss := func(c calibration) float64 {
			p.Devices[device] = c
			sum, n := 0.0, 0
			for _, r := range p.Rows {
				if r.Device == device && r.Fit {
					sum += math.Abs(math.Log(p.predict(t, r) / r.Seconds))
					n++
				}
			}
			return sum / float64(n)
		}
		best := loss(cal)
		first := best
		for _, factor := range []float64{2, 1.4, 1.2, 1.08, 1.03, 1.01} {
			for moved := true; moved; {
				moved = false
				for i := range 8 {
					for _, f := range []float64{factor, 1 / factor} {
						try := cal
						v := []*float64{&try.GEMM, &try.Attention, &try.Launch, &try.Bandwidth, &try.AllToAll, &try.Latency, &try.Across, &try.Stall}[i]
						*v *= f
						if try.AllToAll > 1 {
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
