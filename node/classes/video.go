package classes

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"math"
	"math/big"
	"os"
	"strconv"
	"strings"

	"patchbay/fault"
	"patchbay/node/files"
	"patchbay/node/graph"
	"patchbay/node/media"
	"patchbay/node/picture"
	"patchbay/node/pyjson"
	"patchbay/node/value"
)

// videoClasses returns the classes that make, load and save videos.
func videoClasses() []graph.Class {
	images := graph.Link("images", "IMAGE", "the frames")
	return graph.Rows(graph.Class{Module: "comfy_extras.nodes_video", Category: "video"}, []graph.Class{
		{
			Name: "CreateVideo", Display: "Create Video", Aliases: "images to video", Essential: "Video Tools",
			Description: "Makes a video of pictures, with or without sound.",
			Inputs: []graph.Input{
				images, graph.Float("fps", "pictures a second", 30, 1, 120, 1), graph.Link("audio", "AUDIO", "").AsOptional(),
				graph.Int("bit_depth", "bits of a channel when the video is encoded", 8, 8, 10, 2).With("display", "number").
					AsOptional(),
			},
			Outputs: graph.Slots("VIDEO"), Run: createVideo,
		},
		{
			Name: "GetVideoComponents", Display: "Get Video Components",
			Aliases:     "extract frames, split video, video to images, demux",
			Description: "Takes a video apart: pictures, sound, pictures a second, bits of a channel, colour space.",
			Inputs:      []graph.Input{graph.Link("video", "VIDEO", "")},
			Outputs: []graph.Slot{
				{Name: "images", Type: "IMAGE"},
				{Name: "audio", Type: "AUDIO"},
				{Name: "fps", Type: "FLOAT"},
				{Name: "bit_depth", Type: "INT"},
				{Name: "color_space", Type: "COMBO"},
			},
			Run: videoComponents,
		},
		{
			Name: "LoadVideo", Display: "Load Video", Aliases: "import video, open video, video file", Essential: "Basics",
			Inputs:  []graph.Input{graph.File("file", files.KindInputVideo).With("video_upload", true)},
			Outputs: graph.Slots("VIDEO"), Run: loadVideo, SelfChecked: []string{"file"},
			Check: needsFFmpeg("file", checkFile("file", "Invalid video file: ")), Change: fileTime("file"),
		},
		{
			Name: "SaveVideo", Display: "Save Video", Aliases: "export video", Essential: "Basics", Output: true,
			Description: "Saves the video to the output folder.",
			Inputs: []graph.Input{
				graph.Link("video", "VIDEO", "the video to save"),
				savePrefix("video/ComfyUI"),
				graph.Branch("format", "auto: the container of a loaded video if possible, else MP4", container("auto"),
					container("mp4"), container("mkv"), container("webm")),
				videoCodec("auto").With("hidden", true).AsOptional(),
			},
			Outputs: []graph.Slot{{Name: "video", Type: "VIDEO"}}, Hidden: workflowTexts(),
			Check: needsFFmpeg("video", checkSavePrefix), Run: saveVideo,
		},
		{
			Name: "SaveWEBM", Display: "Save WEBM", Aliases: "export webm", Experimental: true, Output: true,
			Description: "Saves the pictures to the output folder as a WebM video.",
			Inputs: []graph.Input{
				graph.Link("images", "IMAGE", "the frames; VP9 keeps their alpha channel"),
				savePrefix("ComfyUI"),
				graph.Combo("codec", "", "vp9", "av1"), graph.Float("fps", "pictures a second", 24, 0.01, 1000, 0.01),
				graph.Number("crf", "FLOAT", "higher files are smaller and worse", "default", 32.0, "min", int64(0), "max",
					63.0, "step", int64(1)),
			},
			Outputs: []graph.Slot{{Name: "images", Type: "IMAGE"}}, Hidden: workflowTexts(),
			Check: needsFFmpeg("images", checkSavePrefix), Run: saveWebM,
		},
	})
}

// container is one choice of SaveVideo's format.
func container(name string) graph.Alternative {
	return graph.Alternative{Key: name, Inputs: []graph.Input{videoCodec(name)}}
}

// videoCodec is the choice of a codec for a container.
func videoCodec(container string) graph.Input {
	kind := func(name string, crf, most float64) graph.Alternative {
		space := graph.Combo("color_space", "of the pictures; auto: that of a loaded video, else sRGB", "auto", "sRGB",
			"HDR", "HDR PQ").With("display_name", "color space", "default", "auto")
		encoding := graph.Branch("encoding", "auto: a loaded video is copied if possible", graph.Alternative{Key: "auto"},
			graph.Alternative{Key: "re-encode", Inputs: []graph.Input{
				graph.Float("crf", "lower files are larger and better", crf, 0, most, 1), space,
			}})
		return graph.Alternative{Key: name, Inputs: []graph.Input{
			encoding.With("display_name", "encoding mode").AsOptional(),
		}}
	}
	list := []graph.Alternative{{Key: "auto"}}
	if container != "webm" {
		list = append(list, kind("h264", 23, 51))
	}
	return graph.Branch("codec", "", append(list, kind("av1", 30, 63))...)
}

// validation is the form of a class's own check.
type validation = func(*graph.Job, *files.Roots, *pyjson.Object) (field, text string)

// needsFFmpeg is the check of a class that runs ffmpeg: a job is refused before it starts where there is none.
func needsFFmpeg(name string, then validation) validation {
	return func(job *graph.Job, roots *files.Roots, in *pyjson.Object) (field, text string) {
		if lack := media.Lack(); lack != "" {
			return name, lack
		}
		if then == nil {
			return "", ""
		}
		return then(job, roots, in)
	}
}

func createVideo(c *graph.Call) ([]any, error) {
	v := &value.Video{Frames: c.Image("images"), Rate: new(big.Rat).SetFloat64(c.Decimal("fps")), Depth: 8}
	if c.Given("audio") {
		v.Sound = graph.Arg[*value.Audio](c, "audio")
	}
	if c.Given("bit_depth") {
		v.Depth = c.Whole("bit_depth")
	}
	return []any{v}, nil
}

// fileTime makes the content of a file that came with the job, or size and time of one in a folder, part of the cache
// signature.
func fileTime(field string) func(*graph.Call) (string, error) {
	return func(c *graph.Call) (string, error) {
		name, ok := c.Raw(field).(string)
		if !ok {
			return "", nil
		}
		f, err := mediaFile(c, field, name)
		if err != nil {
			return "", err
		}
		if f.Path == "" {
			sum := sha256.Sum256(f.Data)
			return hex.EncodeToString(sum[:]), nil
		}
		info, err := os.Stat(f.Path)
		if err != nil {
			return "", fault.Wrap(fault.FileMissing, field, err)
		}
		return fmt.Sprint(info.Size(), info.ModTime().UnixNano()), nil
	}
}

// mediaFile returns a file that was sent with the job or is in one of the input folders.
func mediaFile(c *graph.Call, field, name string) (*value.VideoFile, error) {
	if data, ok := c.Job.Inputs[name]; ok {
		return &value.VideoFile{Name: name, Data: data}, nil
	}
	path, err := c.Roots().Picture(field, name)
	return &value.VideoFile{Name: name, Path: path}, err
}

// loadVideo returns a video that is read later; what it holds is looked at now, so that the node has the error.
func loadVideo(c *graph.Call) ([]any, error) {
	f, err := mediaFile(c, "file", c.Str("file"))
	if err != nil {
		return nil, err
	}
	return []any{&value.Video{File: f}}, withFile(c, "file", f, func(m *media.File) error { return m.HasVideo() })
}

// withFile calls use with the file of a video.
func withFile(c *graph.Call, field string, f *value.VideoFile, use func(*media.File) error) error {
	m, err := media.Open(c.Context, field, f.Name, f.Path, f.Data)
	if err != nil {
		return err
	}
	defer func() { _ = m.Close() }() // nothing was written to it
	return use(m)
}

func videoComponents(c *graph.Call) ([]any, error) {
	v := graph.Arg[*value.Video](c, "video")
	if v.File == nil {
		fps, _ := v.Rate.Float64()
		return []any{v.Frames, v.Sound, fps, int64(v.Depth), "sRGB"}, nil
	}
	var out []any
	err := withFile(c, "video", v.File, func(m *media.File) error {
		im, err := m.Frames(c.Context, func(pixels int) error { return c.Fits("video", pixels) })
		if err != nil {
			return err
		}
		sound, err := m.Sound(c.Context, -1)
		if err != nil {
			return err
		}
		fps, stream := 1.0, m.Info.Video
		if stream.Rate != nil {
			fps, _ = stream.Rate.Float64()
		}
		space := colourSpace(stream)
		if space == "" {
			space = "sRGB"
		}
		out = []any{im, sound, fps, int64(stream.Bits), space}
		return nil
	})
	return out, err
}

// colourSpace returns ComfyUI's name for the colours of a video, "" if it has none.
func colourSpace(s *media.Stream) string {
	return map[string]string{
		"bt709": "sRGB", "iec61966-2-1": "sRGB", "arib-std-b67": "HDR", "smpte2084": "HDR PQ",
	}[s.Transfer]
}

// wanted is what a SaveVideo asks for.
type wanted struct {
	format, codec string // format and codec of the file
	reuse         bool   // the streams of a loaded video may be copied
	crf           string // quality; empty: the encoder's
	space         string // colour space; empty: not given
	auto          bool   // any container will do
	anyCodec      bool
}

func videoWanted(c *graph.Call) (*wanted, error) {
	w, from := &wanted{format: c.Chosen("format"), codec: "auto"}, ""
	for _, name := range []string{"format.codec", "codec"} {
		if key, ok := c.Raw(name).(string); ok {
			w.codec, from = key, name
			break
		}
	}
	w.auto, w.anyCodec, w.reuse = w.format == "auto", w.codec == "auto", true
	if w.auto {
		w.format = "mp4"
	}
	if w.anyCodec {
		w.codec = map[bool]string{true: "av1", false: "h264"}[w.format == "webm"]
	}
	if w.format == "webm" && w.codec != "av1" {
		return nil, fault.Bad(from, "WebM takes av1, got %s", w.codec)
	}
	if from == "" || !c.Given(from+".encoding.crf") {
		return w, nil
	}
	w.reuse, w.crf = false, strconv.FormatFloat(c.Decimal(from+".encoding.crf"), 'f', -1, 64)
	if w.space = c.Str(from + ".encoding.color_space"); w.space == "auto" {
		w.space = ""
	}
	return w, nil
}

// Colours of a space as ffmpeg names them: primaries, transfer characteristics and matrix.
var colours = map[string][3]string{
	"sRGB": {"bt709", "iec61966-2-1", "bt709"}, "HDR": {"bt2020", "arib-std-b67", "bt2020nc"},
	"HDR PQ": {"bt2020", "smpte2084", "bt2020nc"},
}

// options returns ffmpeg's options for the streams of a file: pictures of so many bits a channel in a colour space ("":
// none is written), and sound, if there is some.
func (w *wanted) options(depth int, space string, sound bool) []string {
	pixels := map[bool]string{true: "yuv420p10le", false: "yuv420p"}[depth >= 10]
	scale, tags := "scale=flags=bilinear", []string(nil)
	if k, ok := colours[space]; ok {
		scale += ":out_range=tv:out_color_matrix=" + strings.TrimSuffix(k[2], "nc")
		tags = []string{"-color_primaries", k[0], "-color_trc", k[1], "-colorspace", k[2], "-color_range", "tv"}
	}
	out := append([]string{
		"-vf", scale + ",format=" + pixels, "-c:v",
		map[string]string{"h264": "libx264", "av1": "libsvtav1"}[w.codec],
	}, tags...)
	switch {
	case w.crf == "0" && w.codec == "av1":
		out = append(out, "-svtav1-params", "lossless=1")
	case w.crf != "":
		out = append(out, "-crf", w.crf)
	}
	if sound && w.format == "webm" {
		out = append(out, "-c:a", "libopus", "-ar", "48000")
	} else if sound {
		out = append(out, "-c:a", "aac")
	}
	return out
}

// muxer returns ffmpeg's options for a container.
func muxer(format string) []string {
	switch format {
	case "mp4": // keys of any name, and the index at the front
		return []string{"-f", "mp4", "-movflags", "use_metadata_tags+faststart"}
	case "mkv":
		return []string{"-f", "matroska"}
	}
	return []string{"-f", format}
}

func saveVideo(c *graph.Call) ([]any, error) {
	v := graph.Arg[*value.Video](c, "video")
	w, err := videoWanted(c)
	if err != nil {
		return nil, err
	}
	var data []byte
	width, height := 0, 0
	if v.File != nil {
		err = withFile(c, "video", v.File, func(m *media.File) (err error) {
			if err = m.HasVideo(); err == nil {
				width, height = m.Info.Video.Width, m.Info.Video.Height
				data, err = transcoded(c, m, w)
			}
			return err
		})
	} else {
		width, height = v.Frames.X, v.Frames.Y
		data, err = framesFile(c, v, w)
	}
	if err != nil {
		return nil, err
	}
	return []any{v}, showVideo(c, data, "."+w.format, width, height)
}

// framesFile returns the file of a video whose frames nodes have made.
func framesFile(c *graph.Call, v *value.Video, w *wanted) ([]byte, error) {
	im := v.Frames
	if err := even("video", im.X, im.Y, w.codec); err != nil {
		return nil, err
	}
	space, depth := "sRGB", v.Depth
	if w.space != "" {
		space = w.space
	}
	if space != "sRGB" {
		depth = max(depth, 10)
	}
	rate := thousandths(v.Rate)
	sound, err := cutTo(v.Sound, rate, im.B)
	if err != nil {
		return nil, err
	}
	return media.Encode(c.Context, framesOf(im, rate, depth, 3), sound, metadataOf(c),
		append(w.options(depth, space, sound != nil), muxer(w.format)...)...)
}

// even refuses sides that the encoder cannot halve.
func even(field string, x, y int, codec string) error {
	if x%2 != 0 || y%2 != 0 {
		return fault.Bad(field, "%s takes pictures with even sides, got %d x %d", codec, x, y)
	}
	return nil
}

// thousandths rounds a rate as ComfyUI does.
func thousandths(rate *big.Rat) *big.Rat {
	f, _ := new(big.Rat).Mul(rate, big.NewRat(1000, 1)).Float64()
	return big.NewRat(int64(math.RoundToEven(f)), 1000)
}

// cutTo returns the part of a sound that n pictures take; nil if there is none.
func cutTo(a *value.Audio, rate *big.Rat, n int) (*value.Audio, error) {
	if a == nil {
		return nil, nil
	}
	if a.C != 1 && a.C != 2 && a.C != 6 {
		return nil, fault.Bad("video", "its sound has %d channels; allowed: 1, 2 or 6", a.C)
	}
	fps, _ := rate.Float64()
	out := &value.Audio{B: 1, C: a.C, N: min(a.N, int(math.Ceil(float64(a.Rate)/fps*float64(n)))), Rate: a.Rate}
	if out.N == 0 {
		return nil, nil
	}
	for k := range a.C {
		out.Data = append(out.Data, a.Channel(0, k)[:out.N]...)
	}
	return out, nil
}

// framesOf hands the first channels of a batch to an encoder, in 8 or 16 bits.
func framesOf(im *picture.Image, rate *big.Rat, depth, channels int) *media.Pictures {
	name := map[int]string{3: "rgb24", 4: "rgba"}[channels]
	if depth > 8 {
		name = "rgb48le"
	}
	return &media.Pictures{N: im.B, Y: im.Y, X: im.X, Pixels: name, Rate: rate, Frame: func(i int) []byte {
		one := im.Items(i, 1)
		if im.C != channels {
			one = one.First(channels)
		}
		if depth > 8 {
			return one.Words(0)
		}
		return one.Bytes(0)
	}}
}

// transcoded returns the file of a loaded video: its streams as they are where that will do, or encoded anew.
func transcoded(c *graph.Call, m *media.File, w *wanted) ([]byte, error) {
	v, texts := m.Info.Video, media.Texts(metadataOf(c))
	space := colourSpace(v)
	if space != "" && w.space != "" && space != w.space {
		return nil, fault.Bad("video", "its colours are %s and are not converted to %s; allowed: auto, %s", space, w.space,
			space)
	}
	muxed := map[string]string{"mkv": "matroska"}[w.format]
	if muxed == "" {
		muxed = w.format
	}
	if w.reuse && (w.auto || m.Info.In(muxed)) && (w.anyCodec || w.codec == v.Codec) &&
		(w.format != "webm" || m.Info.FitsWebM()) {
		return m.Transcode(c.Context, texts, append([]string{"-map", "0:v", "-map", "0:a?", "-map", "0:s?", "-c", "copy"},
			muxer(w.format)...)...)
	}
	x, y := v.Shown()
	if err := even("video", x, y, w.codec); err != nil {
		return nil, err
	}
	depth := v.Bits
	if strings.HasPrefix(space, "HDR") || strings.HasPrefix(w.space, "HDR") {
		depth = max(depth, 10)
	}
	options := append([]string{"-map", "0:v:0", "-fps_mode", "passthrough", "-enc_time_base", "-1", "-bf", "0"},
		w.options(depth, w.space, len(m.Info.Sounds) > 0)...)
	if n := len(m.Info.Sounds); n > 0 {
		options = append(options, "-map", "0:a:"+strconv.Itoa(n-1))
		if k := m.Info.Sounds[n-1].Channels; k != 1 && k != 2 && k != 6 {
			options = append(options, "-ac", "2")
		}
	}
	return m.Transcode(c.Context, texts, append(options, muxer(w.format)...)...)
}

func saveWebM(c *graph.Call) ([]any, error) {
	im, codec := c.Image("images"), c.Str("codec")
	channels, pixels := 3, "yuv420p"
	encoder := []string{"-c:v", "libvpx-vp9"}
	switch {
	case codec == "av1":
		pixels, encoder = "yuv420p10le", []string{"-c:v", "libsvtav1", "-preset", "6"}
	case im.C == 4:
		channels, pixels = 4, "yuva420p"
	}
	rate := thousandths(new(big.Rat).SetFloat64(c.Decimal("fps")))
	crf := strconv.FormatFloat(c.Decimal("crf"), 'f', -1, 64)
	options := append([]string{"-vf", "scale=flags=bilinear,format=" + pixels, "-b:v", "0", "-crf", crf, "-f", "webm"},
		encoder...)
	data, err := media.Encode(c.Context, framesOf(im, rate, 8, channels), nil, metadataOf(c), options...)
	if err != nil {
		return nil, err
	}
	return []any{im}, showVideo(c, data, ".webm", im.X, im.Y)
}

// showVideo hands a file to the caller under the key where the editor looks for moving pictures.
func showVideo(c *graph.Call, data []byte, ext string, width, height int) error {
	p, err := files.CheckPrefix(c.Str("filename_prefix"), width, height)
	if err != nil {
		return err
	}
	c.Save(files.Output{Kind: "images", Prefix: p, Type: "output", Ext: ext, Data: data, Width: width, Height: height})
	c.Show("animated", []any{true})
	return nil
}
