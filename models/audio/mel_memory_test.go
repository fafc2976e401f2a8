package audio

import (
	"math"
	"testing"

	"patchbay/engine"
	"patchbay/engine/ref"
	"patchbay/models/weights/goldenweights"
	"patchbay/tests/golden"
)

// released returns the sizes of LTX-2 (first) and 2.3.
func released() [2]Mel {
	apart := [][blockLayers]int{{1, 3, 5}, {1, 3, 5}, {1, 3, 5}}
	mel := Mel{
		Sounds: 2, Bands: 64, Rate: 16000, Hop: 160, Window: 1024, Width: 128, Widths: []int{1, 2, 4}, Blocks: 2,
		Vocoder: Generator{
			In: 128, Out: 2, Width: 1024, Rates: []int{6, 5, 2, 2, 2}, Taps: []int{16, 15, 8, 4, 4}, Kernels: []int{3, 7, 11},
			Dilations: apart, Leaky: true,
		},
	}
	wide := mel
	wide.Vocoder.Width, wide.Vocoder.Rates, wide.Vocoder.Leaky = 1536, []int{5, 2, 2, 2, 2, 2}, false
	wide.Vocoder.Taps = []int{11, 4, 4, 4, 4, 4}
	wider := mel.Vocoder
	wider.Width, wider.Leaky = 512, false
	wide.Wider = &Wider{Generator: wider, Hop: 80, Window: 512, Ratio: 3}
	return [2]Mel{mel, wide}
}

// TestMelMemory checks the figures of docs/limits.md for a minute of stereo with the released sizes.
func TestMelMemory(t *testing.T) {
	const rows = 60 * 25
	for i, want := range [2][2]float64{{1.2, 1.2}, {1.2, 1.2}} {
		m := released()[i]
		if err := m.Vocoder.check(); err != nil {
			t.Fatal(err)
		}
		v := melCodec{Mel: m, channels: 8, nets: newMelNets(m)}
		side := v.sideBytes(m.rows(rows))
		decode := max(side, v.nets.Vocoder.bytes(m.rows(rows), 0))
		if m.Wider != nil {
			decode = max(decode, v.nets.Wider.bytes(m.rows(rows)*m.Vocoder.Rate()/m.Wider.Hop, 0))
		}
		for k, bytes := range [2]int{decode, side} {
			if got := float64(bytes) / 1e9; !(math.Abs(got-want[k]) < 0.05) {
				t.Errorf("a minute of the sizes %d takes %.2f GB to decode, encode (%d), want %.2f", i, got, k, want[k])
			}
		}
	}
}

// TestMelArenas checks that every step asks for the memory that was counted, one arena at a time, and uses no more.
func TestMelArenas(t *testing.T) {
	set, config, err := goldenweights.Set("ltxaudio-b")
	if err != nil {
		t.Fatal(err)
	}
	ops := ref.New()
	v, err := Open(ops, set, config)
	if err != nil {
		t.Fatal(err)
	}
	defer v.Close()
	var asked []int
	var arenas []*engine.Arena
	env := Env{Ops: ops, Take: func(bytes int) (*engine.Arena, error) {
		buf, err := ops.Alloc(bytes)
		asked = append(asked, bytes)
		arenas = append(arenas, engine.NewArena("audio", buf, bytes))
		return arenas[len(arenas)-1], err
	}}
	const rows = 3
	if _, err := v.Decode(env, golden.Input("latent", 8*rows*16), rows, 16); err != nil {
		t.Fatal(err)
	}
	n := v.net.(*melCodec)
	mels := n.rows(rows)
	second := (mels*n.Vocoder.Rate() + n.Wider.Hop - 1) / n.Wider.Hop
	want := []int{n.sideBytes(mels), n.nets.Vocoder.bytes(mels, 0), 0, 0, n.nets.Wider.bytes(second, 0)}
	if len(asked) != len(want) {
		t.Fatalf("%d arenas, want %d", len(asked), len(want))
	}
	for i, bytes := range want {
		if bytes > 0 && asked[i] != bytes || arenas[i].Peak() != asked[i] {
			t.Errorf("arena %d has %d bytes and uses %d, want %d", i, asked[i], arenas[i].Peak(), bytes)
		}
	}
}
