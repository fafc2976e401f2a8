package media

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"math"
	"math/big"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"patchbay/fault"
)

// demuxers are the formats of files that are read: those that hold sound and pictures themselves. Playlists and others
// that name further files or addresses are not among them, nor are formats that ffmpeg takes for devices or scripts.
const demuxers = "mov,matroska,avi,mpeg,mpegts,mpegvideo,ogg,flac,mp3,wav,w64,aac,aiff,caf,asf,flv,gif,apng,ivf,h264," +
	"hevc"

// Formats is what errors say of the files that are read.
const Formats = "MP4, MOV, MKV, WebM, AVI, MPEG, FLV, ASF and GIF videos, and WAV, FLAC, MP3, Ogg, Opus, AAC, AIFF " +
	"and CAF sounds"

// File is an open file of a video or sound. Errors name Field, the input that it comes from.
type File struct {
	Field, Name string
	Info        Info
	file        *os.File
}

// Info is what a file holds.
type Info struct {
	Format  string // ffmpeg's names of the format, separated by commas
	Seconds float64
	Tags    map[string]string
	Video   *Stream // the first one; nil: none
	Sounds  []Stream
}

// Stream is a stream of a file.
type Stream struct {
	Codec           string
	Width, Height   int
	Pixels          string   // ffmpeg's name of the pixel format
	Rate            *big.Rat // frames a second, on average
	Bits            int      // of a channel
	Transfer        string   // transfer characteristics; empty: not known
	Primaries       string
	Matrix, Range   string
	Place           string // where the chroma samples lie
	Channels, Hertz int
	count           int  // frames, as the file says; 0: it does not
	turned          bool // its pictures lie on their side
}

// Open opens the file at path or, if path is empty, takes data for its content, and asks ffprobe what it holds.
func Open(ctx context.Context, field, name, path string, data []byte) (f *File, err error) {
	f = &File{Field: field, Name: name}
	if path == "" {
		f.file, err = memory(name, data)
	} else {
		f.file, err = os.Open(path)
	}
	if err != nil {
		return nil, fault.Wrap(fault.FileMissing, field, err)
	}
	if err := f.probe(ctx); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// Close closes the file.
func (f *File) Close() error { return f.file.Close() }

// input returns the arguments with which a program reads the file, which it gets as the first of its files.
func (f *File) input(c *child) []string {
	return []string{"-protocol_whitelist", "file", "-format_whitelist", demuxers, "-i", c.file(f.file)}
}

// damaged returns the error of a file that cannot be read.
func (f *File) damaged(err error) error {
	return fault.Named(fault.BadImage, f.Field, "%s: %v; allowed: %s", f.Name, err, Formats)
}

func (f *File) probe(ctx context.Context) error {
	var found struct {
		Format struct {
			Name     string            `json:"format_name"`
			Duration string            `json:"duration"`
			Tags     map[string]string `json:"tags"`
		} `json:"format"`
		Streams []struct {
			Type      string `json:"codec_type"`
			Codec     string `json:"codec_name"`
			Width     int    `json:"width"`
			Height    int    `json:"height"`
			Pixels    string `json:"pix_fmt"`
			Rate      string `json:"avg_frame_rate"`
			Transfer  string `json:"color_transfer"`
			Primaries string `json:"color_primaries"`
			Matrix    string `json:"color_space"`
			Range     string `json:"color_range"`
			Place     string `json:"chroma_location"`
			Channels  int    `json:"channels"`
			Hertz     string `json:"sample_rate"`
			Count     string `json:"nb_frames"`
			Side      []struct {
				Rotation float64 `json:"rotation"`
			} `json:"side_data_list"`
		} `json:"streams"`
	}
	c := child{program: "ffprobe", take: func(r io.Reader) error {
		text, err := io.ReadAll(io.LimitReader(r, 64<<20))
		if err == nil && len(text) > 0 {
			err = json.Unmarshal(text, &found)
		}
		return err
	}}
	c.args = append([]string{"-v", "error", "-hide_banner", "-of", "json", "-show_format", "-show_streams"},
		f.input(&c)...)
	if err := c.run(ctx); err != nil {
		return f.failed(err)
	}
	in := &f.Info
	in.Format, in.Tags = found.Format.Name, found.Format.Tags
	in.Seconds, _ = strconv.ParseFloat(found.Format.Duration, 64) // not every format has one
	for _, s := range found.Streams {
		one := Stream{
			Codec: s.Codec, Width: s.Width, Height: s.Height, Pixels: s.Pixels, Bits: bits(s.Pixels), Transfer: s.Transfer,
			Primaries: s.Primaries, Matrix: s.Matrix, Range: s.Range, Place: s.Place, Channels: s.Channels,
		}
		one.Hertz, _ = strconv.Atoi(s.Hertz)
		one.count, _ = strconv.Atoi(s.Count)
		if r, ok := new(big.Rat).SetString(s.Rate); ok && r.Sign() > 0 { // "0/0" is unknown
			one.Rate = r
		}
		for _, side := range s.Side {
			one.turned = one.turned || math.Mod(math.Abs(side.Rotation), 180) == 90
		}
		switch {
		case s.Type == "video" && in.Video == nil && s.Codec != "":
			in.Video = &one
		case s.Type == "audio" && s.Codec != "" && s.Channels > 0:
			in.Sounds = append(in.Sounds, one)
		}
	}
	return nil
}

// deep matches the end of the names of pixel formats of more than 8 bits.
var deep = regexp.MustCompile(`(9|10|12|14|16)(le|be)$`)

// bits returns the bits of a channel of a pixel format, by ffmpeg's name.
func bits(pixels string) int {
	if m := deep.FindStringSubmatch(pixels); m != nil {
		n, _ := strconv.Atoi(m[1])
		return n
	}
	for name, n := range map[string]int{"rgb48": 16, "bgr48": 16, "rgba64": 16, "bgra64": 16} {
		if strings.HasPrefix(pixels, name) {
			return n
		}
	}
	return 8
}

// In reports whether the file is of one of the formats of a name, such as mp4.
func (in *Info) In(format string) bool { return slices.Contains(strings.Split(in.Format, ","), format) }

// FitsWebM reports whether WebM takes the streams of a file.
func (in *Info) FitsWebM() bool {
	fits := slices.Contains([]string{"av1", "vp8", "vp9"}, in.Video.Codec)
	for _, s := range in.Sounds {
		fits = fits && (s.Codec == "opus" || s.Codec == "vorbis")
	}
	return fits
}

// Shown returns the width and height of a video as it is shown: upright.
func (s *Stream) Shown() (width, height int) {
	if s.turned {
		return s.Height, s.Width
	}
	return s.Width, s.Height
}

// HasSound returns an error if a file holds no sound.
func (f *File) HasSound() error {
	if len(f.Info.Sounds) == 0 {
		return f.damaged(errors.New("there is no sound in it"))
	}
	return nil
}

// HasVideo returns an error if a file holds no video.
func (f *File) HasVideo() error {
	if f.Info.Video == nil {
		return f.damaged(errors.New("there is no video in it"))
	}
	return nil
}
