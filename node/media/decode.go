package media

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"

	"patchbay/engine"
	"patchbay/fault"
	"patchbay/node/picture"
	"patchbay/node/value"
)

// eightBit are the pixel formats whose pictures have 8 bits a channel, as ComfyUI reads them. All others become floats
// without a step in between.
var eightBit = []string{"yuvj420p", "yuvj422p", "yuvj444p", "rgb24", "rgba", "pal8"}

// Frames returns all pictures of the video. room is asked before each whether so many pixels may be held.
func (f *File) Frames(ctx context.Context, room func(pixels int) error) (*picture.Image, error) {
	v := f.Info.Video
	if err := f.HasVideo(); err != nil {
		return nil, err
	}
	format, planes := "gbrpf32le", true
	if slices.Contains(eightBit, v.Pixels) {
		format, planes = "rgb24", false
	}
	scale := "scale=flags=bilinear"
	if v.Place == "left" { // older versions take the samples to be in the middle
		scale += ":in_h_chr_pos=0"
	}
	width, height := v.Shown() // ffmpeg turns the pictures
	pixels := width * height
	if pixels == 0 {
		return nil, f.damaged(fmt.Errorf("its pictures have %d x %d pixels", width, height))
	}
	im := &picture.Image{Y: height, X: width, C: 3}
	if err := room(pixels); err != nil {
		return nil, err
	}
	if n := f.frames(); n > 0 && n <= value.MaxValues/pixels/3 && room(n*pixels) == nil {
		im.Data = make([]float32, 0, n*pixels*3)
	}
	c := child{program: "ffmpeg", take: func(r io.Reader) error {
		bytes := 3 * pixels
		if planes {
			bytes *= 4
		}
		raw, wide := make([]byte, bytes), make([]float32, 3*pixels)
		for {
			if _, err := io.ReadFull(r, raw); err != nil {
				if err == io.EOF {
					err = nil
				}
				return err
			}
			n := (im.B + 1) * pixels
			if err := room(n); err != nil {
				return err
			}
			if n > value.MaxValues/3 {
				return fault.Bad(f.Field, "%s has more than %d pictures of %d x %d: at most %d values are held", f.Name, im.B,
					width, height, value.MaxValues)
			}
			im.B, im.Data = im.B+1, slices.Grow(im.Data, 3*pixels)[:3*n]
			to := im.Data[3*(n-pixels):]
			if !planes {
				for i, b := range raw {
					to[i] = float32(b) / 255
				}
				continue
			}
			engine.Widen(wide, raw, engine.F32)
			for i := range pixels {
				to[3*i], to[3*i+1], to[3*i+2] = wide[2*pixels+i], wide[i], wide[pixels+i] // green, blue, red
			}
		}
	}}
	c.args = slices.Concat(quiet(), f.input(&c), []string{
		"-map", "0:v:0", "-an", "-sn", "-dn", "-fps_mode", "passthrough",
		"-vf", scale + ",format=" + format, "-f", "rawvideo", "pipe:1",
	})
	if err := c.run(ctx); err != nil {
		return nil, f.failed(err)
	}
	if im.B == 0 {
		return nil, f.damaged(errors.New("no picture in it can be decoded"))
	}
	return im, nil
}

// failed returns errors that are about the request as they are, others as damage of the file.
func (f *File) failed(err error) error {
	var known *fault.Error
	if errors.As(err, &known) || errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	return f.damaged(err)
}

// frames estimates how many pictures the video has; 0: unknown.
func (f *File) frames() int {
	v := f.Info.Video
	if v.count > 0 || v.Rate == nil || !(f.Info.Seconds > 0) {
		return v.count
	}
	rate, _ := v.Rate.Float64()
	return int(min(math.Round(f.Info.Seconds*rate), value.MaxValues))
}

// MaxSamples bounds the values of a sound that is read, to 1 GiB.
const MaxSamples = 1 << 28

// Sound returns the samples of a stream of sound: number 0 is the first, -1 the last; nil if there is none.
func (f *File) Sound(ctx context.Context, number int) (*value.Audio, error) {
	if number < 0 {
		number += len(f.Info.Sounds)
	}
	if number < 0 || number >= len(f.Info.Sounds) {
		return nil, nil //nolint:nilnil // a video without sound
	}
	s := f.Info.Sounds[number]
	if s.Hertz < 1 || s.Channels > value.MaxChannels {
		return nil, f.damaged(fmt.Errorf("its sound has %d channels of %d Hz, at most %d channels are read", s.Channels,
			s.Hertz, value.MaxChannels))
	}
	var samples []float32 // the channels of a sample side by side
	c := child{program: "ffmpeg", take: func(r io.Reader) error {
		raw, in := make([]byte, 4*s.Channels<<10), bufio.NewReader(r)
		for {
			n, err := io.ReadFull(in, raw)
			n -= n % (4 * s.Channels)
			at := len(samples)
			if at+n/4 > MaxSamples {
				return fault.Bad(f.Field, "the sound of %s has more than %d values", f.Name, MaxSamples)
			}
			samples = slices.Grow(samples, n/4)[:at+n/4]
			engine.Widen(samples[at:], raw[:n], engine.F32)
			if err == io.EOF || err == io.ErrUnexpectedEOF {
				return nil
			} else if err != nil {
				return err
			}
		}
	}}
	c.args = slices.Concat(quiet(), f.input(&c), []string{
		"-map", "0:a:" + strconv.Itoa(number), "-vn", "-sn", "-dn", "-ac", strconv.Itoa(s.Channels), "-ar",
		strconv.Itoa(s.Hertz), "-c:a", "pcm_f32le", "-f", "f32le", "pipe:1",
	})
	if err := c.run(ctx); err != nil {
		return nil, f.failed(err)
	}
	n := len(samples) / s.Channels
	if n == 0 {
		return nil, f.damaged(errors.New("no sound in it can be decoded"))
	}
	return planar(samples, s.Channels, s.Hertz), nil
}

// planar returns samples whose channels lie side by side as a sound.
func planar(samples []float32, channels, hertz int) *value.Audio {
	n := len(samples) / channels
	a := &value.Audio{B: 1, C: channels, N: n, Rate: hertz, Data: make([]float32, channels*n)}
	for c := range channels {
		to := a.Channel(0, c)
		for i := range to {
			to[i] = samples[i*channels+c]
		}
	}
	return a
}

// quiet are the first arguments of every ffmpeg.
func quiet() []string { return []string{"-nostdin", "-hide_banner", "-v", "error", "-y"} }
