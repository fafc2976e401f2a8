package media

import (
	"patchbay/models/audio"
	"patchbay/node/value"
)

// Resampled returns a at another rate (audio.Resample).
func Resampled(a *value.Audio, rate int) *value.Audio {
	if a.Rate == rate {
		return a
	}
	out := &value.Audio{B: a.B, C: a.C, Rate: rate}
	for i := range a.B * a.C {
		one := audio.Resample(a.Channel(i/a.C, i%a.C), a.Rate, rate, false)
		out.N, out.Data = len(one), append(out.Data, one...)
	}
	return out
}
