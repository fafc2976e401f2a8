package ltx

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"

	"patchbay/models/dit"
	"patchbay/models/sampling"
	"patchbay/models/weights/goldenweights"
	"patchbay/tests/golden"
)

// TestDetect checks the sizes of the golden models, those that a Config writes, and those of a file without a config.
func TestDetect(t *testing.T) {
	for name, want := range map[string]Config{
		"ltx-a": {Hidden: 96, Sound: 64, Depth: 3, Heads: 2, SoundHeads: 2, TextDim: 80, Connectors: Connectors{
			Width: 80, SoundWidth: 80, Depth: 2, Registers: 128, HeadDim: 40, SoundHeadDim: 40, Project: After,
		}},
		"ltx-b": {
			Hidden: 80, Sound: 48, Depth: 2, Heads: 2, SoundHeads: 2, TextDim: 128, Gated: true, TextModulation: true,
			Connectors: Connectors{
				Width: 80, SoundWidth: 48, Depth: 2, Registers: 128, HeadDim: 40, SoundHeadDim: 24, Gated: true, Project: None,
			},
		},
		"ltx-c": {
			Hidden: 96, Sound: 64, Depth: 2, Heads: 3, SoundHeads: 2, TextDim: 48, Gated: true, TextModulation: true,
			Keyframes: true, Connectors: Connectors{
				Width: 96, SoundWidth: 64, Depth: 2, Registers: 128, HeadDim: 32, SoundHeadDim: 32, Gated: true, Project: Before,
			},
		},
	} {
		set, config, err := goldenweights.Set(name)
		if err != nil {
			t.Fatal(err)
		}
		got, err := Detect(set, map[string]string{"config": string(config)})
		if err != nil {
			t.Fatal(err)
		}
		want.Channels, want.SoundFeatures, want.MLPBias, want.SoundMLPBias = 128, 128, true, true
		want.MaxPos, want.SoundMaxPos, want.Causal, want.Middles = []int{20, 2048, 2048}, []int{20}, true, true
		want.Rotation, want.Precision, want.TimeScale, want.GateScale = halves, "float64", 1000, 1000
		if !reflect.DeepEqual(got, want) {
			t.Errorf("%s:\n got %+v\nwant %+v", name, got, want)
		}
		text, err := json.Marshal(got)
		if err != nil {
			t.Fatal(err)
		}
		again, err := Detect(set, map[string]string{"config": string(text)})
		if err != nil || !reflect.DeepEqual(again, want) {
			t.Errorf("%s written and read: %+v, %v", name, again, err)
		}
	}
	bare := Config(released())
	bare.Hidden, bare.Sound, bare.Depth, bare.TextDim = 64, 64, 1, 256
	bare.Connectors = Connectors{
		Width: 256, SoundWidth: 256, Depth: 2, Registers: 128, HeadDim: 128, SoundHeadDim: 128, Project: After,
	}
	d, err := bare.Describe(nil)
	if err != nil {
		t.Fatal(err)
	}
	declared, err := d.Declare()
	if err != nil {
		t.Fatal(err)
	}
	got, err := Detect(goldenweights.Seed("bare", declared), nil)
	if err != nil || !reflect.DeepEqual(got, bare) {
		t.Errorf("without a config: %+v, %v, want %+v", got, err, bare)
	}
}

// TestDetectRefuses checks the errors for sizes that do not fit each other.
func TestDetectRefuses(t *testing.T) {
	set, config, err := goldenweights.Set("ltx-a")
	if err != nil {
		t.Fatal(err)
	}
	for change, says := range map[[2]string]string{
		{`"num_attention_heads": 2`, `"num_attention_heads": 5`}:                        "num_attention_heads",
		{`"audio_num_attention_heads": 2`, `"audio_num_attention_heads": 64`}:           "audio_num_attention_heads",
		{`"connector_attention_head_dim": 40`, `"connector_attention_head_dim": 33`}:    "connector_attention_head_dim",
		{`[20, 2048, 2048]`, `[20, 2048]`}:                                              "positional_embedding_max_pos",
		{`"split"`, `"other"`}:                                                          "rope_type",
		{`"causal_temporal_positioning": true`, `"causal_temporal_positioning": "yes"`}: "config in the file's metadata",
	} {
		var indented strings.Builder
		indented.Write(spaced(t, config))
		text := strings.Replace(indented.String(), change[0], change[1], 1)
		if text == indented.String() {
			t.Fatalf("%s is not in %s", change[0], text)
		}
		if _, err := Detect(set, map[string]string{"config": text}); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: got %v, want an error with %q", change[1], err, says)
		}
	}
}

// spaced writes JSON with a space behind every colon and comma.
func spaced(t *testing.T, text []byte) []byte {
	t.Helper()
	out := strings.NewReplacer(`":`, `": `, `,`, `, `).Replace(string(text))
	if !json.Valid([]byte(out)) {
		t.Fatalf("not JSON: %s", out)
	}
	return []byte(out)
}

// TestTimeLine checks the shift that ComfyUI chose, and its sigmas.
func TestTimeLine(t *testing.T) {
	var want struct {
		Sampling struct {
			Shift    float64
			Max      float32   `json:"sigma_max"`
			Min      float32   `json:"sigma_min"`
			Timestep []float32 `json:"timestep_of_0.7"`
		}
	}
	if err := golden.JSON("ltx/detection.json", &want); err != nil {
		t.Fatal(err)
	}
	d, err := Family().Tiny.Describe(nil)
	if err != nil {
		t.Fatal(err)
	}
	s, err := d.Sampling.Build()
	if err != nil {
		t.Fatal(err)
	}
	if d.Sampling.Shift != want.Sampling.Shift || s.Timestep(.7) != want.Sampling.Timestep[0] {
		t.Errorf("shift %v, timestep %v, want %v", d.Sampling.Shift, s.Timestep(.7), want.Sampling)
	}
	var schedules map[string]struct{ Sigmas []float32 }
	if err := golden.JSON("ltx/sigmas.json", &schedules); err != nil {
		t.Fatal(err)
	}
	for steps, name := range map[int]string{8: "ltx/simple/8", 20: "ltx/simple/20"} {
		got, err := sampling.KSamplerSigmas(s, "euler", "simple", steps, 1)
		if err != nil {
			t.Fatal(err)
		}
		w := schedules[name].Sigmas
		for i := range w {
			if len(got) != len(w) || !(abs(got[i]-w[i]) <= 4e-7) {
				t.Fatalf("%s: got %v, want %v", name, got, w)
			}
		}
	}
}

func abs(v float32) float32 { return max(v, -v) }

// TestPrepareRefuses checks the errors of entries that do not fit.
func TestPrepareRefuses(t *testing.T) {
	m, env := load(t, "ltx-b")
	grid := m.Spec().WithSound(m.Spec().FrameTokens(2, 4, 2), 3, 16)
	text := func(cols int) dit.Array { return dit.Array{Rows: 2, Cols: cols, Data: make([]float32, 2*cols)} }
	good := dit.Entry{Context: text(128), Connected: true}
	for says, change := range map[string]func(e *dit.Entry){
		"timesteps of 3 frames":   func(e *dit.Entry) { e.Frames = []float32{0, 1, 1} },
		"timesteps of 2 rows":     func(e *dit.Entry) { e.SoundRows = []float32{0, 1} },
		"frame rate":              func(e *dit.Entry) { e.FrameRate = 30 },
		"context has 130 columns": func(e *dit.Entry) { e.Context = text(130) },
	} {
		e := good
		change(&e)
		if _, err := m.Prepare(env, []dit.Entry{good, e}, grid); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("got %v, want an error with %q", err, says)
		}
	}
	if _, err := m.Prepare(env, []dit.Entry{good}, grid); err != nil {
		t.Error(err)
	}
}
