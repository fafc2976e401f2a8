package picture

import (
	"bytes"
	"encoding/binary"
	"errors"
	"image"
	"image/draw"
	"image/png"
	"slices"
)

// What becomes of a frame's area before the next frame is drawn.
const (
	keepFrame = iota
	clearFrame
	restoreFrame
)

// animated is one frame of an animated WebP or PNG.
type animated struct {
	frame image.Image // its bounds begin at 0, 0
	at    image.Rectangle
	over  bool // blended with what is there instead of replacing it
	after int
}

// opaque hides that a frame has an alpha channel.
type opaque struct{ image.Image }

// drawn returns the canvas after each frame. Without alpha it is opaque.
func drawn(frames []animated, area image.Rectangle, alpha bool) []image.Image {
	canvas := image.NewNRGBA(area)
	out := make([]image.Image, 0, len(frames))
	for _, f := range frames {
		before := copied(canvas)
		put(canvas, straight8(f.frame), f.at.Min, f.over)
		if shown := copied(canvas); alpha {
			out = append(out, shown)
		} else {
			out = append(out, opaque{shown})
		}
		switch f.after {
		case clearFrame:
			draw.Draw(canvas, f.at, image.Transparent, image.Point{}, draw.Src)
		case restoreFrame:
			canvas = before
		}
	}
	return out
}

// decodeAPNG returns the frames of an animated PNG (PNG third edition, section 11.3.5), each decoded as a file of its
// own, and nil for other PNG files. The default picture counts only if it is one of the frames.
func decodeAPNG(data []byte) ([]image.Image, error) {
	if countPNGFrames(data) == 0 {
		return nil, nil
	}
	var head, control []byte
	var canvas image.Rectangle
	var tables, pixels bytes.Buffer
	var frames []animated
	box := func(b []byte) image.Rectangle {
		return image.Rect(0, 0, int(binary.BigEndian.Uint32(b)), int(binary.BigEndian.Uint32(b[4:])))
	}
	flush := func() error {
		defer pixels.Reset()
		if control == nil || pixels.Len() == 0 {
			return nil
		}
		at := box(control[4:]).Add(image.Pt(box(control[12:]).Dx(), box(control[12:]).Dy()))
		if !at.In(canvas) {
			return errors.New("png: a frame outside the picture")
		}
		var file bytes.Buffer
		file.WriteString(pngSignature)
		writeChunk(&file, "IHDR", slices.Concat(control[4:12], head[8:]))
		file.Write(tables.Bytes())
		writeChunk(&file, "IDAT", pixels.Bytes())
		writeChunk(&file, "IEND", nil)
		im, err := png.Decode(&file)
		if err == nil {
			frames = append(frames, animated{im, at, control[25] == 1, int(control[24])})
		}
		return err
	}
	for _, c := range pngChunks(data) {
		switch body := c.data; {
		case c.id == "IHDR" && len(body) == 13 && head == nil:
			head, canvas = body, box(body)
		case c.id == "PLTE" || c.id == "tRNS":
			writeChunk(&tables, c.id, body)
		case c.id == "IDAT":
			pixels.Write(body)
		case c.id == "fdAT" && len(body) >= 4:
			pixels.Write(body[4:])
		case c.id == "fcTL" && len(body) == 26:
			if err := flush(); err != nil {
				return nil, err
			}
			control = body
		}
	}
	if err := flush(); err != nil {
		return nil, err
	}
	if len(frames) == 0 {
		return nil, errors.New("png: an animation without frames")
	}
	return drawn(frames, canvas, hasAlpha(frames[0].frame)), nil
}

// countPNGFrames counts the frames of an animated PNG; others have none.
func countPNGFrames(data []byte) int64 {
	n, moving := int64(0), false
	for _, c := range pngChunks(data) {
		switch c.id {
		case "acTL":
			moving = true
		case "fcTL":
			n++
		}
	}
	if !moving {
		return 0
	}
	return n
}

func copied(p *image.NRGBA) *image.NRGBA {
	out := image.NewNRGBA(p.Rect)
	copy(out.Pix, p.Pix)
	return out
}

// put draws a frame at a place of the canvas. Blending is libwebp's for straight alpha (src/demux/anim_decode.c). Where
// the canvas is empty the frame keeps its values, also the colours under transparent pixels.
func put(canvas, frame *image.NRGBA, at image.Point, over bool) {
	for y := range frame.Rect.Dy() {
		to, from := canvas.Pix[canvas.PixOffset(at.X, at.Y+y):], frame.Pix[y*frame.Stride:]
		for x := 0; x < 4*frame.Rect.Dx(); x += 4 {
			if a := uint32(from[x+3]); over && a < 255 && [4]byte(to[x:x+4]) != [4]byte{} {
				blend(to[x:x+4], from[x:x+4], a)
			} else {
				copy(to[x:x+4], from[x:x+4])
			}
		}
	}
}

func blend(to, from []byte, a uint32) {
	if a == 0 {
		return
	}
	under := uint32(to[3]) * (256 - a) >> 8
	scale := uint32(1<<24) / (a + under)
	for c := range 3 {
		to[c] = byte((uint32(from[c])*a + uint32(to[c])*under) * scale >> 24)
	}
	to[3] = byte(a + under)
}

// EncodeAPNG writes n frames of 8-bit pixels [Y, X, C] as an animated PNG that repeats without end (PNG third edition,
// section 11.3.5), each shown for so many milliseconds, compressed with level 0 to 9. Texts follow the frames in chunks
// of ComfyUI's own kind. frame returns the pixels of a frame, which are not read after the next call. It panics if n is
// 0 or pixels do not fit the shape.
func EncodeAPNG(n, y, x, c, milliseconds, level int, frame func(i int) []byte, texts ...[2]string) []byte {
	var b bytes.Buffer
	sequence := uint32(0)
	next := func() uint32 {
		sequence++
		return sequence - 1
	}
	writeHeader(&b, y, x, c)
	writeChunk(&b, "acTL", append(binary.BigEndian.AppendUint32(nil, uint32(n)), 0, 0, 0, 0)) // plays: without end
	for i := range n {
		pixels := frame(i)
		if len(pixels) != y*x*c {
			panic("png: pixels of another size than the animation")
		}
		control := binary.BigEndian.AppendUint32(nil, next())
		for _, v := range []int{x, y, 0, 0} {
			control = binary.BigEndian.AppendUint32(control, uint32(v))
		}
		control = binary.BigEndian.AppendUint16(control, uint16(min(milliseconds, 1<<16-1)))
		control = binary.BigEndian.AppendUint16(control, 1000)
		writeChunk(&b, "fcTL", append(control, keepFrame, 0))
		body := deflateRows(pixels, y, x*c, c, level)
		if i == 0 {
			writeChunk(&b, "IDAT", body)
			continue
		}
		writeChunk(&b, "fdAT", append(binary.BigEndian.AppendUint32(nil, next()), body...))
	}
	for _, t := range texts {
		kind, body := encodeText(t[0], t[1])
		if kind == "tEXt" {
			kind = "comf"
		}
		writeChunk(&b, kind, body)
	}
	writeChunk(&b, "IEND", nil)
	return b.Bytes()
}
