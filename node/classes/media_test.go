package classes

import (
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"patchbay/node/files"
	"patchbay/node/graph"
	"patchbay/node/media"
	"patchbay/node/picture"
	"patchbay/node/pyjson"
	"patchbay/node/value"
	"patchbay/tests/golden"
)

// ffmpegNeeded fails a test where ffmpeg is missing: nothing else checks these classes.
func ffmpegNeeded(t *testing.T) {
	t.Helper()
	if lack := media.Lack(); lack != "" {
		t.Fatal(lack)
	}
}

// onValues runs one node on literals and on values that travel along links, and returns its outputs.
func onValues(t *testing.T, roots files.Roots, class string, inputs map[string]any) ([]any, *graph.Result, error) {
	t.Helper()
	given, outputs := map[string]any{}, []any(nil)
	cat := All(graph.Class{
		Name: "Given", Fresh: true, Inputs: []graph.Input{graph.Number("name", "STRING", "")}, Outputs: graph.Slots("*"),
		Run: func(c *graph.Call) ([]any, error) { return []any{given[c.Str("name")]}, nil },
	}, graph.Class{
		Name: "Kept", Output: true,
		Inputs: []graph.Input{graph.Grow("values", "value", 9, graph.Link("value", "*", ""))},
		Run:    func(c *graph.Call) ([]any, error) { _, outputs = c.Grown("values"); return nil, nil },
	})
	runner, err := graph.NewRunner(graph.Config{Catalogue: cat, Roots: roots})
	check(t, err)
	defer runner.Close()
	prompt, in := pyjson.NewObject(), pyjson.NewObject()
	for name, v := range inputs {
		switch v.(type) {
		case *picture.Image, *value.Audio, *value.Video:
			given[name] = v
			prompt.Set("in "+name, pyjson.NewObject("class_type", "Given", "inputs", pyjson.NewObject("name", name)))
			v = []any{"in " + name, int64(0)}
		}
		in.Set(name, v)
	}
	prompt.Set("node", pyjson.NewObject("class_type", class, "inputs", in))
	links := pyjson.NewObject()
	for n := range cat.Class(class).Outputs {
		links.Set(fmt.Sprint("values.value", n), []any{"node", int64(n)})
	}
	prompt.Set("kept", pyjson.NewObject("class_type", "Kept", "inputs", links))
	w, failure := graph.ParseWorkflow(prompt)
	if failure != nil {
		t.Fatal(failure)
	}
	job := graph.Job{Workflow: w, ExtraPNGInfo: map[string]any{"workflow": someWorkflow()}}
	result, err := runner.Run(t.Context(), job, nil)
	return outputs, result, err
}

// someWorkflow has text that ffmpeg's metadata must escape.
func someWorkflow() *pyjson.Object { return pyjson.NewObject("nodes", []any{"a=b;#\\\"\n"}) }

// recordedClip is the input of tests/reference/make_media.py.
func recordedClip() (*picture.Image, *value.Audio) {
	im := &picture.Image{B: 9, Y: 66, X: 72, C: 3}
	for t := range im.B {
		for y := range im.Y {
			for x := range im.X {
				im.Data = append(im.Data, float32(x)/71, float32(y)/65, float32((x+y+4*t)%40)/40)
			}
		}
	}
	a := &value.Audio{B: 1, C: 2, N: 11025, Rate: 22050, Data: make([]float32, 22050)}
	for i := range a.N {
		a.Data[i] = float32(0.5 * math.Sin(2*math.Pi*440*float64(i)/22050))
		a.Data[a.N+i] = float32(0.25 * math.Sin(2*math.Pi*660*float64(i)/22050))
	}
	return im, a
}

// withAlpha appends the blue channel as alpha.
func withAlpha(im *picture.Image) *picture.Image {
	out := im.Widened(4)
	for i := 3; i < len(out.Data); i += 4 {
		out.Data[i] = out.Data[i-1]
	}
	return out
}

// openMedia opens a file that a node has made, or a recorded one.
func openMedia(t *testing.T, path string, data []byte) *media.File {
	t.Helper()
	f, err := media.Open(t.Context(), "file", path, path, data)
	check(t, err)
	t.Cleanup(func() { check(t, f.Close()) })
	return f
}

func anySize(int) error { return nil }

// apart returns the mean difference of values; NaN counts as infinitely far.
func apart(a, b []float32) float64 {
	if len(a) != len(b) || len(a) == 0 {
		return math.Inf(1)
	}
	sum := 0.0
	for i := range a {
		sum += math.Abs(float64(a[i]) - float64(b[i]))
	}
	if math.IsNaN(sum) {
		return math.Inf(1)
	}
	return sum / float64(len(a))
}

// TestSavedVideos compares the files of SaveVideo and SaveWEBM with those of ComfyUI 0.33.0: container, codecs, pixel
// format, size, rate, colours, texts, number of frames, the frames and the sound.
func TestSavedVideos(t *testing.T) {
	ffmpegNeeded(t)
	im, sound := recordedClip()
	clip, _, err := onValues(t, files.Roots{}, "CreateVideo", map[string]any{"images": im, "fps": 24.0, "audio": sound})
	check(t, err)
	deep, _, err := onValues(t, files.Roots{}, "CreateVideo",
		map[string]any{"images": im, "fps": 23.976, "bit_depth": int64(10)})
	check(t, err)
	for name, c := range map[string]struct {
		class  string
		inputs map[string]any
	}{
		"h264_00001_.mp4":  {"SaveVideo", map[string]any{"video": clip[0], "format": "auto", "codec": "auto"}},
		"mkv10_00001_.mkv": {"SaveVideo", map[string]any{"video": deep[0], "format": "mkv", "format.codec": "h264"}},
		"av1_00001_.webm":  {"SaveVideo", map[string]any{"video": clip[0], "format": "webm", "format.codec": "auto"}},
		"hdr_00001_.mp4": {"SaveVideo", map[string]any{
			"video": clip[0], "format": "mp4", "format.codec": "h264", "format.codec.encoding": "re-encode",
			"format.codec.encoding.crf": 18.0, "format.codec.encoding.color_space": "HDR",
		}},
		"vp9_00001_.webm":     {"SaveWEBM", map[string]any{"images": im, "codec": "vp9", "fps": 24.0, "crf": 32.0}},
		"webmav1_00001_.webm": {"SaveWEBM", map[string]any{"images": im, "codec": "av1", "fps": 24.0, "crf": 32.0}},
		"vp9a_00001_.webm": {"SaveWEBM", map[string]any{
			"images": withAlpha(im), "codec": "vp9", "fps": 23.976, "crf": 32.0,
		}},
	} {
		t.Run(name, func(t *testing.T) {
			c.inputs["filename_prefix"] = "x"
			_, result, err := onValues(t, files.Roots{}, c.class, c.inputs)
			check(t, err)
			if ui := fmt.Sprint(result.UI["node"]["animated"]); ui != "[true]" || len(result.Outputs) != 1 ||
				result.Outputs[0].Kind != "images" || result.Outputs[0].Ext != filepath.Ext(name) {
				t.Errorf("animated %s, files %v", ui, result.Outputs)
			}
			ours := openMedia(t, "", result.Outputs[0].Data)
			theirs := openMedia(t, golden.Path("media/"+name), nil)
			a, b := ours.Info, theirs.Info
			for _, s := range []*media.Stream{a.Video, b.Video} {
				if s.Transfer == "unknown" { // another spelling of later versions
					s.Transfer, s.Primaries, s.Matrix = "", "", ""
				}
			}
			if got, want := fmt.Sprintf("%+v", *a.Video), fmt.Sprintf("%+v", *b.Video); got != want {
				t.Errorf("video\n got %s\nwant %s", got, want)
			}
			if got, want := fmt.Sprintf("%+v", a.Sounds), fmt.Sprintf("%+v", b.Sounds); got != want || a.Format != b.Format {
				t.Errorf("%s, sound %s\nwant %s, %s", a.Format, got, b.Format, want)
			}
			tagged(t, a.Tags)
			got, err := ours.Frames(t.Context(), anySize)
			check(t, err)
			want, err := theirs.Frames(t.Context(), anySize)
			check(t, err)
			near, err1, err2 := apart(got.Data, want.Data), apart(got.Data, im.Data), apart(want.Data, im.Data)
			t.Logf("%d frames, %.4f apart, %.4f from the input, ComfyUI's %.4f; %d bytes", got.B, near, err1, err2,
				len(result.Outputs[0].Data))
			if !(near <= 0.02) || !(err1 <= 1.2*err2+0.002) {
				t.Errorf("%d frames, %.4f apart, %.4f from the input, ComfyUI's %.4f", got.B, near, err1, err2)
			}
			if len(a.Sounds) == 0 {
				return
			}
			played, err := ours.Sound(t.Context(), -1)
			check(t, err)
			wanted, err := theirs.Sound(t.Context(), -1)
			check(t, err)
			n := min(played.N, wanted.N)
			if d := apart(played.Channel(0, 1)[:n], wanted.Channel(0, 1)[:n]); !(d <= 0.01) || played.N-n > 1024 ||
				wanted.N-n > 1024 {
				t.Errorf("sounds of %d and %d samples, %.4f apart", played.N, wanted.N, d)
			}
		})
	}
}

// tagged checks that a file has the workflow in both forms.
func tagged(t *testing.T, tags map[string]string) {
	t.Helper()
	found := map[string]string{}
	for k, v := range tags {
		found[strings.ToLower(k)] = v
	}
	if !strings.Contains(found["prompt"], `"class_type"`) || found["workflow"] != string(pyjson.Dump(someWorkflow())) {
		t.Errorf("texts %v, want prompt and workflow", tags)
	}
}

// TestSavedSounds compares the files of sounds with those of ComfyUI 0.33.0.
func TestSavedSounds(t *testing.T) {
	ffmpegNeeded(t)
	_, sound := recordedClip()
	for name, c := range map[string]struct {
		class, quality string
		near           float64
	}{
		"flac_00001.flac": {"SaveAudio", "", 1e-4}, "mp3v0_00001.mp3": {"SaveAudioMP3", "V0", 0.01},
		"mp3k_00001.mp3": {"SaveAudioMP3", "128k", 0.01}, "opus_00001.opus": {"SaveAudioOpus", "96k", 0.01},
	} {
		t.Run(name, func(t *testing.T) {
			out := t.TempDir()
			in := map[string]any{"audio": sound, "filename_prefix": strings.Split(name, "_")[0]}
			if c.quality != "" {
				in["quality"] = c.quality
			}
			_, result, err := onValues(t, files.Roots{}, c.class, in)
			check(t, err)
			if len(result.Outputs) != 1 || result.Outputs[0].Kind != "audio" {
				t.Fatalf("files %v", result.Outputs)
			}
			if ref, err := files.Commit(out, result.Outputs[0]); err != nil || ref.Filename != name {
				t.Errorf("saved as %v, %v", ref, err)
			}
			ours, theirs := openMedia(t, "", result.Outputs[0].Data), openMedia(t, golden.Path("media/"+name), nil)
			if a, b := ours.Info, theirs.Info; a.Format != b.Format || fmt.Sprint(a.Sounds) != fmt.Sprint(b.Sounds) {
				t.Errorf("%s %+v, want %s %+v", a.Format, a.Sounds, b.Format, b.Sounds)
			}
			if name != "opus_00001.opus" { // there the texts are those of the stream
				tagged(t, ours.Info.Tags)
			} else if !strings.Contains(string(result.Outputs[0].Data), "workflow="+string(pyjson.Dump(someWorkflow()))) {
				t.Error("no workflow in the file")
			}
			got, err := ours.Sound(t.Context(), 0)
			check(t, err)
			want, err := theirs.Sound(t.Context(), 0)
			check(t, err)
			if d := apart(got.Data, want.Data); !(d <= c.near) {
				t.Errorf("%d samples, want %d; %.5f apart", got.N, want.N, d)
			}
		})
	}
}

// mediaTensors returns the recorded values.
func mediaTensors(t *testing.T) func(name string) ([]int, []float32) {
	t.Helper()
	file, err := golden.Open("media/media.safetensors")
	check(t, err)
	t.Cleanup(func() { _ = file.Close() })
	return func(name string) ([]int, []float32) {
		if e, ok := file.Entry(name); ok {
			v, err := e.F32()
			check(t, err)
			return e.Shape, v
		}
		t.Fatalf("%s is not recorded", name)
		return nil, nil
	}
}

// TestFilesAreReadAsComfyUIDoes compares GetVideoComponents and LoadAudio with ComfyUI 0.33.0 on files that it wrote.
func TestFilesAreReadAsComfyUIDoes(t *testing.T) {
	ffmpegNeeded(t)
	recorded := mediaTensors(t)
	roots := files.Roots{Input: golden.Path("media")}
	for name, want := range map[string][3]any{
		"h264_00001_.mp4": {24.0, int64(8), "sRGB"}, "vp9_00001_.webm": {24.0, int64(8), "sRGB"},
		"mkv10_00001_.mkv": {23.976, int64(10), "sRGB"},
	} {
		video, _, err := onValues(t, roots, "LoadVideo", map[string]any{"file": name})
		check(t, err)
		out, _, err := onValues(t, roots, "GetVideoComponents", map[string]any{"video": video[0]})
		check(t, err)
		if !slices.Equal(out[2:], want[:]) {
			t.Errorf("%s: %v, want %v", name, out[2:], want)
		}
		im, key := out[0].(*picture.Image), strings.Split(name, "_")[0]
		shape, v := recorded(key + ".frames")
		if !slices.Equal(shape, []int{1, im.Y, im.X, im.C}) || im.B != 9 {
			t.Fatalf("%s: %d frames [%d, %d, %d], want %v", name, im.B, im.Y, im.X, im.C, shape)
		}
		if d := apart(im.Items(8, 1).Data, v); !(d <= 1e-5) {
			t.Errorf("%s: the last frame is %.6f apart", name, d)
		}
		if sound := out[1].(*value.Audio); key == "h264" {
			heard(t, name, sound, key, ".sound")
		} else if sound != nil {
			t.Errorf("%s has a sound", name)
		}
	}
	for _, name := range []string{"mp3v0_00001.mp3", "opus_00001.opus", "flac_00001.flac"} {
		out, _, err := onValues(t, roots, "LoadAudio", map[string]any{"audio": name})
		check(t, err)
		heard(t, name, out[0].(*value.Audio), "load."+strings.Split(name, "_")[0], "")
	}
}

// heard compares a sound with a recorded one, of which the first 4000 samples are stored.
func heard(t *testing.T, name string, a *value.Audio, key, part string) {
	t.Helper()
	var facts map[string]struct{ Rate, Samples int }
	check(t, golden.JSON("media/media.json", &facts))
	shape, v := mediaTensors(t)(key + part)
	if want := facts[key]; a == nil || a.B != 1 || a.C != shape[1] || a.N != want.Samples || a.Rate != want.Rate {
		t.Fatalf("%s: %s, want %d samples at %d Hz", name, graph.Describe(a), want.Samples, want.Rate)
	}
	for c := range a.C {
		if d := apart(a.Channel(0, c)[:shape[2]], v[c*shape[2]:(c+1)*shape[2]]); !(d <= 1e-4) {
			t.Errorf("%s: channel %d is %.6f apart", name, c, d)
		}
	}
}

// TestSoundNodes compares the classes that change sounds with ComfyUI 0.33.0.
func TestSoundNodes(t *testing.T) {
	recorded := mediaTensors(t)
	var facts map[string]struct{ Rate int }
	check(t, golden.JSON("media/media.json", &facts))
	sound := func(name string) *value.Audio {
		shape, v := recorded("node." + name)
		return &value.Audio{B: shape[0], C: shape[1], N: shape[2], Rate: facts["node."+name].Rate, Data: v}
	}
	a, b := sound("a"), sound("b")
	both := func(name string, v any) map[string]any { return map[string]any{"audio1": a, "audio2": b, name: v} }
	for name, c := range map[string]struct {
		class  string
		inputs map[string]any
		slot   int
	}{
		"concat.after":  {"AudioConcat", both("direction", "after"), 0},
		"concat.before": {"AudioConcat", both("direction", "before"), 0},
		"merge.add":     {"AudioMerge", both("merge_method", "add"), 0},
		"merge.mean":    {"AudioMerge", both("merge_method", "mean"), 0}, "merge.subtract": {
			"AudioMerge", both("merge_method", "subtract"), 0,
		},
		"merge.multiply": {"AudioMerge", both("merge_method", "multiply"), 0},
		"merge.ba":       {"AudioMerge", map[string]any{"audio1": b, "audio2": a, "merge_method": "add"}, 0},
		"volume":         {"AudioAdjustVolume", map[string]any{"audio": a, "volume": int64(-7)}, 0},
		"trim":           {"TrimAudioDuration", map[string]any{"audio": a, "start_index": 0.0025, "duration": 0.004}, 0},
		"trim.end":       {"TrimAudioDuration", map[string]any{"audio": a, "start_index": -0.005, "duration": 60.0}, 0},
		"left":           {"SplitAudioChannels", map[string]any{"audio": a}, 0},
		"right":          {"SplitAudioChannels", map[string]any{"audio": a}, 1},
		"join":           {"JoinAudioChannels", map[string]any{"audio_left": b, "audio_right": sound("right")}, 0},
	} {
		out, _, err := onValues(t, files.Roots{}, c.class, c.inputs)
		check(t, err)
		got, want := out[c.slot].(*value.Audio), sound(name)
		if got.B != want.B || got.C != want.C || got.N != want.N || got.Rate != want.Rate {
			t.Errorf("%s: %s, want %s", name, graph.Describe(got), graph.Describe(want))
			continue
		}
		for i, v := range got.Data {
			if !(math.Abs(float64(v)-float64(want.Data[i])) <= 2e-6) {
				t.Errorf("%s: value %d is %v, want %v", name, i, v, want.Data[i])
				break
			}
		}
	}
	out, _, err := onValues(t, files.Roots{}, "EmptyAudio",
		map[string]any{"duration": 0.5, "sample_rate": int64(44101), "channels": int64(1)})
	check(t, err)
	if e := out[0].(*value.Audio); e.N != 22050 || e.C != 1 || e.Rate != 44101 || slices.Max(e.Data) != 0 {
		t.Errorf("an empty sound is %s", graph.Describe(e))
	}
}

// TestAnimatedWebP compares SaveAnimatedWEBP with ComfyUI 0.33.0: lossless pixels are equal, texts are where ComfyUI
// has them.
func TestAnimatedWebP(t *testing.T) {
	ffmpegNeeded(t)
	im, _ := recordedClip()
	for name, c := range map[string]struct {
		im       *picture.Image
		fps      float64
		lossless bool
		method   string
		near     float64
	}{
		"webp": {im, 6, true, "default", 0}, "webplossy": {im, 24, false, "slowest", 0.002},
		"webpa": {withAlpha(im), 24, true, "fastest", 0},
	} {
		_, result, err := onValues(t, files.Roots{}, "SaveAnimatedWEBP", map[string]any{
			"images": c.im, "filename_prefix": "x", "fps": c.fps, "lossless": c.lossless, "quality": int64(80),
			"method": c.method,
		})
		check(t, err)
		theirs, err := os.ReadFile(golden.Path("media/" + name + "_00001_.webp"))
		check(t, err)
		data := result.Outputs[0].Data
		got, _, err := picture.Decode(data)
		check(t, err)
		want, _, err := picture.Decode(theirs)
		check(t, err)
		if d := apart(got.Data, want.Data); got.B != want.B || !(d <= c.near) {
			t.Errorf("%s: %d frames, want %d; %.5f apart", name, got.B, want.B, d)
		}
		if a, b := animationTimes(data), animationTimes(theirs); !slices.Equal(a, b) {
			t.Errorf("%s: frames last %v, want %v", name, a, b)
		}
		prompt, extra, err := picture.WorkflowFrom(data)
		if err != nil || !strings.Contains(string(prompt), "SaveAnimatedWEBP") || extra["workflow"] == nil {
			t.Errorf("%s: workflow %s, %v, %v", name, prompt, extra, err)
		}
		if fmt.Sprint(result.UI["node"]["animated"]) != "[true]" {
			t.Errorf("%s: shown as %v", name, result.UI["node"])
		}
	}
}

// animationTimes returns how long the frames of a WebP last, in milliseconds, and how often it is repeated.
func animationTimes(data []byte) (out []int) {
	for at := 12; at+8 <= len(data); {
		n := int(data[at+4]) | int(data[at+5])<<8 | int(data[at+6])<<16
		body := data[at+8:]
		switch string(data[at : at+4]) {
		case "ANMF":
			out = append(out, int(body[12])|int(body[13])<<8|int(body[14])<<16)
		case "ANIM":
			out = append(out, -int(body[4])-int(body[5])<<8)
		}
		at += 8 + n + n%2
	}
	return out
}

// TestLoadedVideosAreCopied checks that SaveVideo copies the streams of a loaded video where that will do, and encodes
// them anew otherwise, sound included.
func TestLoadedVideosAreCopied(t *testing.T) {
	ffmpegNeeded(t)
	roots := files.Roots{Input: golden.Path("media")}
	video, _, err := onValues(t, roots, "LoadVideo", map[string]any{"file": "h264_00001_.mp4"})
	check(t, err)
	source := openMedia(t, golden.Path("media/h264_00001_.mp4"), nil)
	want, err := source.Frames(t.Context(), anySize)
	check(t, err)
	for name, c := range map[string]struct {
		format, codec string
		near          float64
		video, sound  string
	}{
		"copied": {"auto", "auto", 0, "h264", "aac"}, "another codec": {"mkv", "av1", 0.03, "av1", "aac"},
		"another container": {"webm", "auto", 0.03, "av1", "opus"},
	} {
		_, result, err := onValues(t, roots, "SaveVideo", map[string]any{
			"video": video[0], "filename_prefix": "x", "format": c.format, "format.codec": c.codec,
		})
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		f := openMedia(t, "", result.Outputs[0].Data)
		tagged(t, f.Info.Tags)
		got, err := f.Frames(t.Context(), anySize)
		check(t, err)
		if d := apart(got.Data, want.Data); got.B != want.B || !(d <= c.near) || f.Info.Video.Codec != c.video ||
			len(f.Info.Sounds) != 1 || f.Info.Sounds[0].Codec != c.sound {
			t.Errorf("%s: %d frames, want %d, %.4f apart; %+v", name, got.B, want.B, d, f.Info)
		}
	}
}

// TestPicturesAreNamed checks the names that ComfyUI 0.33.0 gives the files of its two classes that save pictures.
func TestPicturesAreNamed(t *testing.T) {
	im, _ := recordedClip()
	for class, want := range map[string]string{"SaveImage": "n_00001_.png", "SaveImageAdvanced": "n_00001.png"} {
		in := map[string]any{"images": im, "filename_prefix": "n"}
		if class == "SaveImageAdvanced" {
			in["format"], in["format.bit_depth"], in["format.input_color_space"] = "png", "8-bit", "sRGB"
		}
		_, result, err := onValues(t, files.Roots{}, class, in)
		check(t, err)
		out := t.TempDir()
		if ref, err := files.Commit(out, result.Outputs[0]); err != nil || ref.Filename != want {
			t.Errorf("%s saves %v, %v, want %s", class, ref, err, want)
		}
	}
}
