package value

import (
	"fmt"

	"patchbay/array"
	"patchbay/fault"
	"patchbay/node/pyjson"
)

// Audio is a batch of sounds, the waveform [B, C, N] in row-major order: B sounds of C channels and N samples, at Rate
// samples a second, mostly in -1..1. A nil *Audio is the sound of a clip that has none.
type Audio struct {
	B, C, N, Rate int
	Data          []float32
}

// Channel returns the samples of one channel of one sound; they share memory with a.
func (a *Audio) Channel(item, channel int) []float32 {
	at := (item*a.C + channel) * a.N
	return a.Data[at : at+a.N : at+a.N]
}

// First returns the first sound of a batch.
func (a *Audio) First() *Audio {
	if a == nil {
		return nil
	}
	return &Audio{B: 1, C: a.C, N: a.N, Rate: a.Rate, Data: a.Data[: a.C*a.N : a.C*a.N]}
}

// Sounds returns the error of a node that needs a sound where there is none, nil otherwise.
func (a *Audio) Sounds(field string) error {
	if a == nil {
		return fault.Bad(field, "there is no sound: the video that it comes from has no audio track; take a video with one, "+
			"or an EmptyAudio")
	}
	return nil
}

// maxRate bounds the samples a second of a sound that a client sends.
const maxRate = 768000

// MaxChannels bounds the channels of a sound.
const MaxChannels = 64

func (a *Audio) export() any {
	return pyjson.NewObject("waveform", array.New(a.Data, a.B, a.C, a.N), "sample_rate", int64(a.Rate))
}

func importAudio(v any) (*Audio, error) {
	o, ok := v.(*pyjson.Object)
	if !ok {
		return nil, fmt.Errorf("takes {waveform: tensor [B, C, N], sample_rate: number}, got %T", v)
	}
	t, ok := array.Of(o.At("waveform"))
	if !ok || len(t.Shape) != 3 || t.Shape[0] < 1 || t.Shape[1] < 1 || t.Shape[1] > MaxChannels {
		return nil, fmt.Errorf("waveform must be a tensor [B, C, N] of 1 to %d channels", MaxChannels)
	}
	data, err := finite(t)
	if err != nil {
		return nil, fmt.Errorf("waveform: %w", err)
	}
	n, err := pyjson.Int(o.At("sample_rate"))
	rate, small := n.(int64)
	if err != nil || !small || rate < 1 || rate > maxRate {
		return nil, fmt.Errorf("sample_rate is %s: want a number from 1 to %d", pyjson.Repr(o.At("sample_rate")), maxRate)
	}
	return &Audio{B: t.Shape[0], C: t.Shape[1], N: t.Shape[2], Rate: int(rate), Data: data}, nil
}
