package media

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/big"
	"slices"
	"strconv"
	"strings"

	"patchbay/engine"
	"patchbay/node/value"
)

// Pictures are the frames of a video that is written. Each is asked for when the encoder takes it.
type Pictures struct {
	N, Y, X int
	Pixels  string // ffmpeg's name of the format of Frame's bytes
	Rate    *big.Rat
	Frame   func(i int) []byte
}

// Texts are the metadata of a file: keys and values.
type Texts [][2]string

// Encode returns a file with pictures, sound or both; options are those of ffmpeg for its output, the format included.
func Encode(ctx context.Context, p *Pictures, sound *value.Audio, texts Texts, options ...string) ([]byte, error) {
	if p == nil && sound == nil {
		panic("media: a file of nothing")
	}
	return written(ctx, texts, options, func(c *child) (in []string) {
		if p != nil {
			in = append(in, "-f", "rawvideo", "-pixel_format", p.Pixels, "-video_size", fmt.Sprintf("%dx%d", p.X, p.Y),
				"-framerate", p.Rate.RatString(), "-i", c.pipe(p.write))
		}
		if sound != nil {
			in = append(in, "-f", "f32le", "-ar", strconv.Itoa(sound.Rate), "-ac", strconv.Itoa(sound.C), "-i",
				c.pipe(func(w io.Writer) error { return writeSound(w, sound) }))
		}
		return in
	})
}

func (p *Pictures) write(w io.Writer) error {
	for i := range p.N {
		if _, err := w.Write(p.Frame(i)); err != nil {
			return err
		}
	}
	return nil
}

// writeSound writes the first sound of a batch with its channels side by side.
func writeSound(w io.Writer, a *value.Audio) error {
	const most = 1 << 14 // samples at a time
	side := make([]float32, 0, most*a.C)
	for at := 0; at < a.N; at += most {
		side = side[:0]
		for i := at; i < min(at+most, a.N); i++ {
			for c := range a.C {
				side = append(side, a.Data[c*a.N+i])
			}
		}
		if _, err := w.Write(engine.FromF32(side, len(side)).Buf.Host); err != nil {
			return err
		}
	}
	return nil
}

// Transcode returns the file f in another form: options are those of ffmpeg for its output. The texts of the file stay
// unless others have their keys.
func (f *File) Transcode(ctx context.Context, texts Texts, options ...string) ([]byte, error) {
	for key, text := range f.Info.Tags {
		if !slices.ContainsFunc(texts, func(t [2]string) bool { return strings.EqualFold(t[0], key) }) {
			texts = append(slices.Clip(texts), [2]string{key, text})
		}
	}
	out, err := written(ctx, texts, options, f.input)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", f.Name, err)
	}
	return out, nil
}

// written runs ffmpeg and returns the file that it writes. The file is in memory, because most formats are completed at
// their front, and so are the texts, which would be too long for an argument and seen in the list of processes.
func written(ctx context.Context, texts Texts, options []string,
	inputs func(*child) []string,
) (data []byte, err error) {
	c := child{program: "ffmpeg"}
	about, err := memory("metadata", texts.encode())
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, about.Close()) }()
	file, err := memory("output", nil)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	in := inputs(&c)
	sources := 0
	for _, arg := range in {
		if arg == "-i" {
			sources++
		}
	}
	in = append(in, "-f", "ffmetadata", "-i", c.file(about), "-map_metadata", strconv.Itoa(sources))
	c.args = slices.Concat(quiet(), in, options, []string{c.file(file)})
	if err := c.run(ctx); err != nil {
		return nil, err
	}
	info, err := file.Stat()
	if err != nil {
		return nil, err
	}
	data = make([]byte, info.Size())
	_, err = io.ReadFull(io.NewSectionReader(file, 0, info.Size()), data)
	return data, err
}

// encode returns the texts as ffmpeg's metadata format has them.
func (t Texts) encode() []byte {
	b := []byte(";FFMETADATA1\n")
	for _, text := range t {
		for i, part := range text {
			for j := range len(part) {
				if strings.IndexByte("=;#\\\n", part[j]) >= 0 {
					b = append(b, '\\')
				}
				b = append(b, part[j])
			}
			b = append(b, "=\n"[i])
		}
	}
	return b
}

// Recoded returns what is left of 8-bit pictures of red, green and blue, [N, Y, X, 3], after ffmpeg has encoded each by
// itself as options say and decoded it again. Colours are scaled as PyAV does.
func (p *Pictures) Recoded(ctx context.Context, options ...string) (out []byte, err error) {
	const scale = "scale=flags=bilinear"
	for i := range p.N {
		one := Pictures{N: 1, Y: p.Y, X: p.X, Pixels: "rgb24", Rate: p.Rate, Frame: func(int) []byte { return p.Frame(i) }}
		data, err := Encode(ctx, &one, nil, nil, slices.Concat([]string{"-vf", scale}, options)...)
		if err != nil {
			return nil, err
		}
		if out, err = decoded(ctx, out, data, p.Y*p.X*3, "-vf", scale, "-pix_fmt", "rgb24"); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// decoded appends the bytes of the only picture in a file, of which there must be n.
func decoded(ctx context.Context, to, data []byte, n int, options ...string) (_ []byte, err error) {
	file, err := memory("recoded", data)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	at := len(to)
	to = slices.Grow(to, n)[:at+n]
	c := child{program: "ffmpeg", take: func(r io.Reader) error {
		_, err := io.ReadFull(r, to[at:])
		return err
	}}
	c.args = slices.Concat(quiet(), []string{"-i", c.file(file)}, options,
		[]string{"-fps_mode", "passthrough", "-f", "rawvideo", "pipe:1"})
	return to, c.run(ctx)
}
