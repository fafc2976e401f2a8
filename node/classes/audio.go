package classes

import (
	"errors"
	"io"
	"math"
	"math/big"
	"os"
	"strings"

	"patchbay/fault"
	"patchbay/node/files"
	"patchbay/node/graph"
	"patchbay/node/media"
	"patchbay/node/pyjson"
	"patchbay/node/value"
)

// audioClasses returns the classes that make, change, load and save sounds.
func audioClasses() []graph.Class {
	audio, lowest := graph.Link("audio", "AUDIO", ""), new(big.Int).Neg(new(big.Int).SetUint64(math.MaxUint64))
	one, two := graph.Link("audio1", "AUDIO", ""), graph.Link("audio2", "AUDIO", "")
	saved := func(quality ...graph.Input) []graph.Input {
		return append([]graph.Input{
			graph.Link("audio", "AUDIO", "the sound to save"),
			savePrefix("audio/ComfyUI"),
		}, quality...)
	}
	quality := func(preset string, choices ...string) graph.Input {
		return graph.Combo("quality", "", choices...).With("default", preset)
	}
	mp3, opus := quality("V0", "V0", "128k", "320k"), quality("128k", "64k", "96k", "128k", "192k", "320k")
	sound := []graph.Slot{{Name: "audio", Type: "AUDIO"}}
	check := needsFFmpeg("audio", checkSavePrefix)
	save := func(format string) func(*graph.Call) ([]any, error) {
		return func(c *graph.Call) ([]any, error) {
			kind, name := format, "quality"
			if kind == "" {
				kind, name = c.Chosen("format"), "format.quality"
			}
			return saveAudio(c, c.Str("filename_prefix"), "output", kind, name)
		}
	}
	base := graph.Class{Module: "comfy_extras.nodes_audio", Category: "audio", Outputs: graph.Slots("AUDIO")}
	return graph.Rows(base, []graph.Class{
		{
			Name: "LoadAudio", Display: "Load Audio", Aliases: "import audio, open audio, audio file", Essential: "Audio",
			Inputs:      []graph.Input{graph.File("audio", files.KindInputAudio).With("audio_upload", true)},
			SelfChecked: []string{"audio"}, Check: checkAudio, Change: fileTime("audio"), Run: loadAudio,
		},
		{
			Name: "SaveAudio", Display: "Save Audio (FLAC) (DEPRECATED)", Aliases: "export flac", Essential: "Audio",
			Deprecated: true, Output: true, Description: "Saves the sound to the output folder.", Inputs: saved(),
			Outputs: sound, Hidden: workflowTexts(), Check: check, Run: save("flac"),
		},
		{
			Name: "SaveAudioMP3", Display: "Save Audio (MP3) (DEPRECATED)", Aliases: "export mp3", Essential: "Audio",
			Deprecated: true, Output: true, Description: "Saves the sound to the output folder.", Inputs: saved(mp3),
			Outputs: sound, Hidden: workflowTexts(), Check: check, Run: save("mp3"),
		},
		{
			Name: "SaveAudioOpus", Display: "Save Audio (Opus) (DEPRECATED)", Aliases: "export opus", Deprecated: true,
			Output: true, Description: "Saves the sound to the output folder.", Inputs: saved(opus), Outputs: sound,
			Hidden: workflowTexts(), Check: check, Run: save("opus"),
		},
		{
			Name: "SaveAudioAdvanced", Display: "Save Audio (Advanced)",
			Aliases: "save audio, export audio, output audio, write audio, flac, mp3, opus", Output: true,
			Description: "Saves the sound to the output folder.",
			Inputs: saved(graph.Branch("format", "", graph.Alternative{Key: "flac"},
				graph.Alternative{Key: "mp3", Inputs: []graph.Input{mp3}},
				graph.Alternative{Key: "opus", Inputs: []graph.Input{opus}})),
			Outputs: sound, Hidden: workflowTexts(), Check: check, Run: save(""),
		},
		{
			Name: "PreviewAudio", Display: "Preview Audio", Aliases: "play audio", Output: true,
			Description: "Saves the sound to the temp folder.", Inputs: []graph.Input{audio}, Outputs: sound,
			Hidden: workflowTexts(), Check: needsFFmpeg("audio", nil), Run: func(c *graph.Call) ([]any, error) {
				return saveAudio(c, tempPrefix(), "temp", "flac", "")
			},
		},
		{
			Name: "EmptyAudio", Display: "Empty Audio", Aliases: "blank audio",
			Inputs: []graph.Input{
				graph.Number("duration", "FLOAT", "in seconds", "default", 60.0, "min", 0.0, "max", uint64(math.MaxUint64),
					"step", 0.01),
				graph.Int("sample_rate", "samples a second", 44100, 1, 192000, 0).AsAdvanced(),
				graph.Int("channels", "1: mono, 2: stereo", 2, 1, 2, 0).AsAdvanced(),
			},
			Run: emptyAudio,
		},
		{
			Name: "TrimAudioDuration", Display: "Trim Audio Duration", Aliases: "cut audio, audio clip, shorten audio",
			Description: "Takes a part of the sound.",
			Inputs: []graph.Input{
				audio, graph.Number("start_index", "FLOAT", "in seconds; negative: from the end", "default", 0.0, "min", lowest,
					"max", uint64(math.MaxUint64), "step", 0.01),
				graph.Number("duration", "FLOAT", "in seconds", "default", 60.0, "min", 0.0, "step", 0.01),
			},
			Run: whereSound(trimAudio, "audio"),
		},
		{
			Name: "SplitAudioChannels", Display: "Split Audio Channels", Aliases: "stereo to mono",
			Description: "Returns the left and the right channel.", Inputs: []graph.Input{audio},
			Outputs: []graph.Slot{{Name: "left", Type: "AUDIO"}, {Name: "right", Type: "AUDIO"}},
			Run:     splitChannels,
		},
		{
			Name: "JoinAudioChannels", Display: "Join Audio Channels", Description: "Makes stereo of two mono sounds.",
			Inputs:  []graph.Input{graph.Link("audio_left", "AUDIO", ""), graph.Link("audio_right", "AUDIO", "")},
			Outputs: sound, Run: whereSound(joinChannels, "audio_left", "audio_right"),
		},
		{
			Name: "AudioConcat", Display: "Concatenate Audio", Aliases: "join audio, combine audio, append audio",
			Description: "Plays one sound after the other.",
			Inputs: []graph.Input{
				one, two, graph.Combo("direction", "where audio2 is put", "after", "before").With("default", "after"),
			},
			Run: whereSound(concatAudio, "audio1", "audio2"),
		},
		{
			Name: "AudioMerge", Display: "Merge Audio", Aliases: "mix audio, overlay audio, layer audio",
			Description: "Plays two sounds at once.",
			Inputs:      []graph.Input{one, two, graph.Combo("merge_method", "", "add", "mean", "subtract", "multiply")},
			Run:         whereSound(mergeAudio, "audio1", "audio2"),
		},
		{
			Name: "AudioAdjustVolume", Display: "Adjust Audio Volume", Aliases: "audio gain, loudness, audio level",
			Description: "Makes the sound louder or softer.",
			Inputs:      []graph.Input{audio, graph.Int("volume", "in decibels: 6 doubles, -6 halves", 1, -100, 100, 0)},
			Run: whereSound(func(c *graph.Call, a []*value.Audio) (*value.Audio, error) {
				gain := float32(math.Pow(10, float64(c.Whole("volume"))/20))
				return withValues(a[0], func(v float32) float32 { return v * gain }), nil
			}, "audio"),
		},
	})
}

// whereSound returns the function of a class that makes one sound of the named inputs. If only one of them has a sound,
// as a video without an audio track has none, the result is that, as in ComfyUI.
func whereSound(f func(*graph.Call, []*value.Audio) (*value.Audio, error),
	names ...string,
) func(*graph.Call) ([]any, error) {
	return func(c *graph.Call) ([]any, error) {
		var sounds []*value.Audio
		for _, name := range names {
			if a := graph.Arg[*value.Audio](c, name); a != nil {
				sounds = append(sounds, a)
			}
		}
		switch {
		case len(sounds) == 0:
			return []any{(*value.Audio)(nil)}, nil
		case len(sounds) < len(names):
			return []any{sounds[0]}, nil
		}
		out, err := f(c, sounds)
		return []any{out}, err
	}
}

// withValues returns a sound like a with f applied to every value.
func withValues(a *value.Audio, f func(float32) float32) *value.Audio {
	out := *a
	out.Data = mapped(a.Data, f)
	return &out
}

// part returns the samples from..to of every channel.
func part(a *value.Audio, from, to int) *value.Audio {
	out := &value.Audio{B: a.B, C: a.C, N: to - from, Rate: a.Rate}
	for b := range a.B {
		for k := range a.C {
			out.Data = append(out.Data, a.Channel(b, k)[from:to]...)
		}
	}
	return out
}

// channels returns the channels from..to of every sound.
func channels(a *value.Audio, from, to int) *value.Audio {
	out := &value.Audio{B: a.B, C: to - from, N: a.N, Rate: a.Rate}
	for b := range a.B {
		for k := from; k < to; k++ {
			out.Data = append(out.Data, a.Channel(b, k)...)
		}
	}
	return out
}

// checkAudio is LoadAudio's own validation. WAV files are read without ffmpeg.
func checkAudio(job *graph.Job, roots *files.Roots, in *pyjson.Object) (field, text string) {
	there := checkFile("audio", "Invalid audio file: ")
	if name, ok := in.At("audio").(string); !ok || strings.HasSuffix(strings.ToLower(name), ".wav") {
		return there(job, roots, in)
	}
	return needsFFmpeg("audio", there)(job, roots, in)
}

func loadAudio(c *graph.Call) ([]any, error) {
	f, err := mediaFile(c, "audio", c.Str("audio"))
	if err != nil {
		return nil, err
	}
	if a, err := loadWAV(f); a != nil || err != nil {
		return []any{a}, err
	}
	var a *value.Audio
	err = withFile(c, "audio", f, func(m *media.File) (err error) {
		if err = m.HasSound(); err == nil {
			a, err = m.Sound(c.Context, 0)
		}
		return err
	})
	return []any{a}, err
}

// loadWAV returns the sound of a WAV file of uncompressed samples; nil for all other files.
func loadWAV(f *value.VideoFile) (*value.Audio, error) {
	data := f.Data
	if f.Path != "" {
		file, err := os.Open(f.Path)
		if err != nil {
			return nil, fault.Wrap(fault.FileMissing, "audio", err)
		}
		defer func() { _ = file.Close() }() // nothing was written to it
		head := make([]byte, 12)
		if _, err := io.ReadFull(file, head); err != nil || !media.IsWAV(head) {
			return nil, nil //nolint:nilerr // ffmpeg says what is wrong with it
		}
		rest, err := io.ReadAll(io.LimitReader(file, maxInputFile+1))
		if err != nil {
			return nil, fault.Wrap(fault.FileMissing, "audio", err)
		}
		data = append(head, rest...)
	}
	if !media.IsWAV(data) {
		return nil, nil
	}
	if len(data) > maxInputFile {
		return nil, fault.Bad("audio", "%s has more than %d MiB", f.Name, maxInputFile>>20)
	}
	a, err := media.DecodeWAV(data)
	switch {
	case errors.Is(err, media.ErrCoding):
		return nil, nil
	case err != nil:
		return nil, fault.Named(fault.BadImage, "audio", "%s: %v", f.Name, err)
	case a.N == 0:
		return nil, fault.Named(fault.BadImage, "audio", "%s: a WAV file without samples", f.Name)
	}
	return a, nil
}

// opusRates are the rates that Opus has, in samples a second.
var opusRates = []int{8000, 12000, 16000, 24000, 48000}

// saveAudio hands each sound of a batch to the caller as a file; quality names the input that has it.
func saveAudio(c *graph.Call, prefix, folder, format, quality string) ([]any, error) {
	a := graph.Arg[*value.Audio](c, "audio")
	if err := a.Sounds("audio"); err != nil {
		return nil, err
	}
	if a.C > 2 {
		return nil, fault.Bad("audio", "the sound has %d channels; allowed: 1 or 2", a.C)
	}
	if a.N == 0 {
		return nil, fault.Bad("audio", "the sound is empty")
	}
	coder := map[string][]string{
		"flac": {"-c:a", "flac", "-sample_fmt", "s16", "-f", "flac"},
		"mp3":  {"-c:a", "libmp3lame", "-f", "mp3"}, "opus": {"-c:a", "libopus", "-f", "opus"},
	}[format]
	switch given, _ := c.Raw(quality).(string); given {
	case "":
	case "V0":
		coder = append(coder, "-q:a", "0")
	default:
		coder = append(coder, "-b:a", given)
	}
	for i := range a.B {
		p, err := files.CheckPrefix(strings.ReplaceAll(prefix, "%batch_num%", pyjson.Str(int64(i))), 0, 0)
		if err != nil {
			return nil, err
		}
		one := &value.Audio{B: 1, C: a.C, N: a.N, Rate: a.Rate, Data: a.Data[i*a.C*a.N : (i+1)*a.C*a.N]}
		if format == "opus" {
			rate := opusRates[len(opusRates)-1]
			for k := len(opusRates) - 1; k >= 0 && opusRates[k] >= a.Rate; k-- {
				rate = opusRates[k]
			}
			one = media.Resampled(one, rate)
		}
		data, err := media.Encode(c.Context, nil, one, metadataOf(c), coder...)
		if err != nil {
			return nil, err
		}
		c.Save(files.Output{Kind: files.KindAudio, Prefix: p, Type: folder, Ext: "." + format, Bare: true, Data: data})
	}
	return []any{a}, nil
}

func emptyAudio(c *graph.Call) ([]any, error) {
	a := &value.Audio{B: 1, C: c.Whole("channels"), Rate: c.Whole("sample_rate")}
	n := math.RoundToEven(c.Decimal("duration") * float64(a.Rate))
	if n*float64(a.C) > media.MaxSamples {
		return nil, fault.Bad("duration", "%.0f samples, at most %d are allowed for %d channels", n,
			media.MaxSamples/a.C, a.C)
	}
	a.N = int(n)
	a.Data = make([]float32, a.C*a.N)
	return []any{a}, nil
}

func trimAudio(c *graph.Call, in []*value.Audio) (*value.Audio, error) {
	a, start, length := in[0], c.Decimal("start_index"), c.Decimal("duration")
	if a.N == 0 {
		return a, nil
	}
	at := func(seconds float64) float64 { return math.RoundToEven(seconds * float64(a.Rate)) }
	clamp := func(n float64) int { return int(min(max(n, 0), float64(a.N))) }
	from := at(start)
	if start < 0 {
		from += float64(a.N)
	}
	first := clamp(from)
	last := clamp(float64(first) + at(length))
	if first >= last {
		return nil, fault.Bad("start_index", "nothing is left from %g s for %g s of a sound of %g s; the start must lie "+
			"within the sound and the duration be above 0", start, length, float64(a.N)/float64(a.Rate))
	}
	return part(a, first, last), nil
}

func splitChannels(c *graph.Call) ([]any, error) {
	a := graph.Arg[*value.Audio](c, "audio")
	if a == nil {
		return []any{a, a}, nil
	}
	if a.C != 2 {
		return nil, fault.Bad("audio", "the sound has %d channels; allowed: 2", a.C)
	}
	return []any{channels(a, 0, 1), channels(a, 1, 2)}, nil
}

// sameRate returns two sounds at the higher of their rates.
func sameRate(a, b *value.Audio) (*value.Audio, *value.Audio) {
	rate := max(a.Rate, b.Rate)
	return media.Resampled(a, rate), media.Resampled(b, rate)
}

// asMany returns an error if two sounds are not as many.
func asMany(field string, a, b *value.Audio) error {
	if a.B != b.B {
		return fault.Bad(field, "a batch of %d sounds; allowed: %d, as the other has", b.B, a.B)
	}
	return nil
}

func joinChannels(_ *graph.Call, in []*value.Audio) (*value.Audio, error) {
	for i, name := range []string{"audio_left", "audio_right"} {
		if in[i].C != 1 {
			return nil, fault.Bad(name, "the sound has %d channels; allowed: 1", in[i].C)
		}
	}
	l, r := sameRate(in[0], in[1])
	if err := asMany("audio_right", l, r); err != nil {
		return nil, err
	}
	out := &value.Audio{B: l.B, C: 2, N: min(l.N, r.N), Rate: l.Rate}
	for b := range l.B {
		out.Data = append(append(out.Data, l.Channel(b, 0)[:out.N]...), r.Channel(b, 0)[:out.N]...)
	}
	return out, nil
}

// stereo returns mono as two equal channels.
func stereo(a *value.Audio) *value.Audio {
	if a.C != 1 {
		return a
	}
	out := &value.Audio{B: a.B, C: 2, N: a.N, Rate: a.Rate}
	for b := range a.B {
		out.Data = append(append(out.Data, a.Channel(b, 0)...), a.Channel(b, 0)...)
	}
	return out
}

func concatAudio(c *graph.Call, in []*value.Audio) (*value.Audio, error) {
	a, b := sameRate(stereo(in[0]), stereo(in[1]))
	if err := asMany("audio2", a, b); err != nil {
		return nil, err
	}
	if a.C != b.C {
		return nil, fault.Bad("audio2", "the sound has %d channels; allowed: %d, as audio1 has", b.C, a.C)
	}
	if c.Str("direction") == "before" {
		a, b = b, a
	}
	out := &value.Audio{B: a.B, C: a.C, N: a.N + b.N, Rate: a.Rate}
	for i := range a.B {
		for k := range a.C {
			out.Data = append(append(out.Data, a.Channel(i, k)...), b.Channel(i, k)...)
		}
	}
	return out, nil
}

func mergeAudio(c *graph.Call, in []*value.Audio) (*value.Audio, error) {
	a, b := sameRate(in[0], in[1])
	if a.N == 0 || b.N == 0 {
		return a, nil
	}
	if a.B != b.B && a.B != 1 && b.B != 1 || a.C != b.C && a.C != 1 && b.C != 1 {
		return nil, fault.Bad("audio2", "%d sounds of %d channels; allowed: 1 or %d sounds of 1 or %d channels, as audio1 "+
			"has", b.B, b.C, a.B, a.C)
	}
	merge := map[string]func(x, y float32) float32{
		"add": func(x, y float32) float32 { return x + y }, "subtract": func(x, y float32) float32 { return x - y },
		"multiply": func(x, y float32) float32 { return x * y }, "mean": func(x, y float32) float32 { return (x + y) / 2 },
	}[c.Str("merge_method")]
	out, peak := &value.Audio{B: max(a.B, b.B), C: max(a.C, b.C), N: a.N, Rate: a.Rate}, float32(0)
	for i := range out.B {
		for k := range out.C {
			x, y := a.Channel(i%a.B, k%a.C), b.Channel(i%b.B, k%b.C)
			for n, v := range x {
				w := float32(0)
				if n < len(y) {
					w = y[n]
				}
				v = merge(v, w)
				out.Data, peak = append(out.Data, v), max(peak, v, -v)
			}
		}
	}
	if peak <= 1 {
		return out, nil
	}
	return withValues(out, func(v float32) float32 { return v / peak }), nil
}
