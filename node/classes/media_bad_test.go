package classes

import (
	"context"
	"errors"
	"fmt"
	"math/big"
	"os"
	osexec "os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"patchbay/fault"
	"patchbay/node/files"
	"patchbay/node/media"
	"patchbay/node/pyjson"
	"patchbay/node/value"
	"patchbay/tests/golden"
)

// TestBadMedia checks that what is wrong with videos and sounds is named with node, field and what is allowed.
func TestBadMedia(t *testing.T) {
	ffmpegNeeded(t)
	dir := t.TempDir()
	clip, err := os.ReadFile(golden.Path("media/h264_00001_.mp4"))
	check(t, err)
	secret := filepath.Join(t.TempDir(), "secret.ts")
	silent, err := os.ReadFile(golden.Path("media/vp9_00001_.webm"))
	check(t, err)
	check(t, os.WriteFile(secret, clip, 0o600))
	for name, data := range map[string]string{
		"cut.mp4": string(clip[:200]), "text.mp4": "this is no video", "empty.mp4": "",
		"list.mp4":   "#EXTM3U\n#EXT-X-TARGETDURATION:1\n#EXTINF:1,\nfile://" + secret + "\n#EXT-X-ENDLIST\n",
		"concat.mp4": "ffconcat version 1.0\nfile " + secret + "\n", "cut.wav": "RIFF\x00\x00\x00\x00WAVEfmt ",
		"silent.mp4": string(silent), "sdp.mp4": "v=0\no=- 0 0 IN IP4 127.0.0.1\ns=x\nc=IN IP4 127.0.0.1\nt=0 0\n" +
			"m=video 5004 RTP/AVP 96\na=rtpmap:96 H264/90000\n",
	} {
		check(t, os.WriteFile(filepath.Join(dir, name), []byte(data), 0o600))
	}
	roots := files.Roots{Input: dir}
	im, sound := recordedClip()
	odd := im.Cut(0, 0, 71, 66)
	for name, c := range map[string]struct {
		class  string
		inputs map[string]any
		field  string
		text   string
	}{
		"cut":      {"LoadVideo", map[string]any{"file": "cut.mp4"}, "file", "allowed: MP4"},
		"text":     {"LoadVideo", map[string]any{"file": "text.mp4"}, "file", "allowed: MP4"},
		"empty":    {"LoadVideo", map[string]any{"file": "empty.mp4"}, "file", "allowed: MP4"},
		"playlist": {"LoadVideo", map[string]any{"file": "list.mp4"}, "file", "allowed: MP4"},
		"concat":   {"LoadVideo", map[string]any{"file": "concat.mp4"}, "file", "allowed: MP4"},
		"sdp":      {"LoadVideo", map[string]any{"file": "sdp.mp4"}, "file", "allowed: MP4"},
		"wav":      {"LoadAudio", map[string]any{"audio": "cut.wav"}, "audio", "without samples"},
		"no sound": {"LoadAudio", map[string]any{"audio": "silent.mp4"}, "audio", "there is no sound in it"},
		"none": {
			"SaveAudio", map[string]any{"audio": (*value.Audio)(nil), "filename_prefix": "x"}, "audio", "no audio track",
		},
		"crf": {
			"SaveWEBM",
			map[string]any{"images": im, "codec": "vp9", "fps": 24.0, "crf": 64.0, "filename_prefix": "x"},
			"crf",
			"63",
		},
		"fps": {"CreateVideo", map[string]any{"images": im, "fps": 121.0}, "fps", "120"},
	} {
		_, _, err := onValues(t, roots, c.class, c.inputs)
		f := fault.From(err)
		if err == nil || f.Field != c.field || !strings.Contains(allOf(f), c.text) || f.Node != "node" {
			t.Errorf("%s: got %s, field %q, want field %q and %q", name, allOf(f), f.Field, c.field, c.text)
		}
		if strings.Contains(fmt.Sprint(err), "secret") {
			t.Errorf("%s: ffmpeg went for another file: %v", name, err)
		}
	}
	made, _, err := onValues(t, roots, "CreateVideo", map[string]any{"images": odd, "fps": 24.0, "audio": sound})
	check(t, err)
	_, _, err = onValues(t, roots, "SaveVideo", map[string]any{
		"video": made[0], "filename_prefix": "x", "format": "auto", "format.codec": "auto",
	})
	if f := fault.From(err); err == nil || f.Field != "video" || !strings.Contains(f.Text, "even sides, got 71 x 66") {
		t.Errorf("odd sides: %v", err)
	}
}

// TestWithoutFFmpeg checks that a job is refused before it starts where ffmpeg is missing, and that WAV files and
// frames need none.
func TestWithoutFFmpeg(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	dir := t.TempDir()
	wav := "RIFF\x00\x00\x00\x00WAVEfmt \x10\x00\x00\x00\x01\x00\x01\x00\x40\x1f\x00\x00\x80\x3e\x00\x00" +
		"\x02\x00\x10\x00data\x04\x00\x00\x00\x00\x40\x00\xc0"
	check(t, os.WriteFile(filepath.Join(dir, "a.wav"), []byte(wav), 0o600))
	check(t, os.WriteFile(filepath.Join(dir, "a.mp4"), nil, 0o600))
	check(t, os.WriteFile(filepath.Join(dir, "a.mp3"), nil, 0o600))
	roots := files.Roots{Input: dir}
	out, _, err := onValues(t, roots, "LoadAudio", map[string]any{"audio": "a.wav"})
	check(t, err)
	if a := out[0].(*value.Audio); a.Rate != 8000 || !slices.Equal(a.Data, []float32{0.5, -0.5}) {
		t.Errorf("the WAV file is %+v", a)
	}
	im, sound := recordedClip()
	clip, _, err := onValues(t, roots, "CreateVideo", map[string]any{"images": im, "fps": 24.0, "audio": sound})
	check(t, err)
	_, _, err = onValues(t, roots, "GetVideoComponents", map[string]any{"video": clip[0]})
	check(t, err)
	for class, in := range map[string]map[string]any{
		"LoadVideo": {"file": "a.mp4"}, "LoadAudio": {"audio": "a.mp3"},
		"SaveVideo":    {"video": clip[0], "filename_prefix": "x", "format": "auto", "format.codec": "auto"},
		"SaveWEBM":     {"images": im, "codec": "vp9", "fps": 24.0, "crf": 32.0, "filename_prefix": "x"},
		"PreviewAudio": {"audio": sound}, "SaveAudio": {"audio": sound, "filename_prefix": "x"},
	} {
		_, result, err := onValues(t, roots, class, in)
		f := fault.From(err)
		if err == nil || f.Code != fault.OutputsFailed || !strings.Contains(allOf(f), media.Install) ||
			len(result.Executed) > 0 {
			t.Errorf("%s: %s, ran %v", class, allOf(f), result.Executed)
		}
	}
}

// allOf returns all that an error says.
func allOf(f *fault.Error) string {
	return f.Text + " " + f.Details + " " + string(pyjson.Dump(f.NodeErrors))
}

// TestFFmpegEndsWithTheJob checks that ffmpeg is killed when its job is cancelled, and that one that fails is an error
// with its last lines.
func TestFFmpegEndsWithTheJob(t *testing.T) {
	ffmpegNeeded(t)
	im, _ := recordedClip()
	ctx, cancel := context.WithCancel(t.Context())
	p := framesOf(im, big.NewRat(24, 1), 8, 3)
	frame := p.Frame
	p.N = 1 << 30
	p.Frame = func(i int) []byte {
		if i == 20 {
			cancel()
		}
		return frame(i % im.B)
	}
	_, err := media.Encode(ctx, p, nil, nil, "-c:v", "libx264", "-pix_fmt", "yuv420p", "-f", "mp4")
	if !errors.Is(err, context.Canceled) {
		t.Errorf("a cancelled encoder: %v", err)
	}
	p.N, p.Frame = im.B, frame
	_, err = media.Encode(t.Context(), p, nil, nil, "-c:v", "nosuchcodec", "-f", "mp4")
	var exit *osexec.ExitError
	if !errors.As(err, &exit) || !strings.Contains(err.Error(), "nosuchcodec") {
		t.Errorf("a codec that is not there: %v", err)
	}
}
