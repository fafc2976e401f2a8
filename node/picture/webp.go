package picture

import (
	"bytes"
	"encoding/binary"
	"errors"
	"image"
	"slices"

	"golang.org/x/image/webp"
)

// Bits of the first byte of a VP8X chunk (WebP container specification, "Extended File Format").
const (
	webpAnimated = 1 << 1
	webpEXIF     = 1 << 3
	webpAlpha    = 1 << 4
)

var errWebP = errors.New("webp: invalid format")

// chunk is one chunk of a PNG or WebP file, or of a frame of an animated WebP.
type chunk struct {
	id   string
	data []byte
}

// riffChunks returns the chunks of data. One that is cut short is left out, as are those after it.
func riffChunks(data []byte) []chunk {
	var out []chunk
	for len(data) >= 8 {
		n := uint64(binary.LittleEndian.Uint32(data[4:]))
		if n+8 > uint64(len(data)) {
			break
		}
		out = append(out, chunk{string(data[:4]), data[8 : 8+n]})
		data = data[min(8+n+n%2, uint64(len(data))):]
	}
	return out
}

// extended returns the first byte of the VP8X chunk and the size of the canvas; ok is false for a file without one.
func extended(data []byte) (flags byte, canvas image.Rectangle, ok bool) {
	all := riffChunks(data[12:])
	if len(all) == 0 || all[0].id != "VP8X" || len(all[0].data) < 10 {
		return 0, canvas, false
	}
	head := all[0].data
	return head[0], image.Rect(0, 0, uint24(head[4:])+1, uint24(head[7:])+1), true
}

func uint24(b []byte) int { return int(b[0]) | int(b[1])<<8 | int(b[2])<<16 }

// countWebPFrames counts the frames of an animated WebP; others have none.
func countWebPFrames(data []byte) int64 {
	n := int64(0)
	for _, c := range riffChunks(data[12:]) {
		if c.id == "ANMF" {
			n++
		}
	}
	return n
}

// decodeWebP returns the picture of a WebP file, or all frames of an animated one.
func decodeWebP(data []byte) ([]image.Image, error) {
	flags, canvas, ok := extended(data)
	if !ok || flags&webpAnimated == 0 {
		im, err := stillWebP(data)
		return []image.Image{im}, err
	}
	var frames []animated
	for _, c := range riffChunks(data[12:]) {
		if c.id != "ANMF" {
			continue
		}
		if len(c.data) < 16 {
			return nil, errWebP
		}
		at := image.Pt(2*uint24(c.data), 2*uint24(c.data[3:]))
		area := image.Rectangle{at, at.Add(image.Pt(uint24(c.data[6:])+1, uint24(c.data[9:])+1))}
		if !area.In(canvas) {
			return nil, errWebP
		}
		file := frameFile(c.data[16:], area.Size())
		cfg, err := webp.DecodeConfig(bytes.NewReader(file))
		if err != nil || image.Pt(cfg.Width, cfg.Height) != area.Size() {
			return nil, errWebP
		}
		im, err := stillWebP(file)
		if err != nil {
			return nil, err
		}
		f := animated{frame: im, at: area, over: c.data[15]&2 == 0}
		if c.data[15]&1 != 0 {
			f.after = clearFrame
		}
		frames = append(frames, f)
	}
	if len(frames) == 0 {
		return nil, errWebP
	}
	return drawn(frames, canvas, flags&webpAlpha != 0), nil
}

// frameFile returns the chunks of a frame as a file of its own.
func frameFile(frame []byte, size image.Point) []byte {
	var body []byte
	add := func(id string, data []byte) { body = appendChunk(body, id, data) }
	inside := riffChunks(frame)
	if slices.ContainsFunc(inside, func(c chunk) bool { return c.id == "ALPH" }) {
		add("VP8X", extension(webpAlpha, size))
	}
	for _, c := range inside {
		if c.id == "ALPH" || c.id == "VP8 " || c.id == "VP8L" {
			add(c.id, c.data)
		}
	}
	return riffFile(body)
}

func riffFile(body []byte) []byte {
	out := binary.LittleEndian.AppendUint32([]byte("RIFF"), uint32(len(body)+4))
	return append(append(out, "WEBP"...), body...)
}

func appendChunk(body []byte, id string, data []byte) []byte {
	body = binary.LittleEndian.AppendUint32(append(body, id...), uint32(len(data)))
	if body = append(body, data...); len(data)%2 != 0 {
		body = append(body, 0)
	}
	return body
}

// extension returns the content of a VP8X chunk.
func extension(flags byte, size image.Point) []byte {
	x, y := size.X-1, size.Y-1
	return []byte{flags, 0, 0, 0, byte(x), byte(x >> 8), byte(x >> 16), byte(y), byte(y >> 8), byte(y >> 16)}
}

// WithWebPTexts returns a WebP file of x by y pixels with texts in EXIF data, as ComfyUI's SaveAnimatedWEBP writes
// them: the first as Model, the others as Make and the tags below.
func WithWebPTexts(data []byte, x, y int, texts ...[2]string) ([]byte, error) {
	if len(data) < 12 || len(texts) == 0 {
		return data, nil
	}
	chunks, flags, body := riffChunks(data[12:]), byte(0), []byte(nil)
	if len(chunks) == 0 {
		return nil, errWebP
	}
	if chunks[0].id == "VP8X" && len(chunks[0].data) == 10 {
		flags, chunks = chunks[0].data[0], chunks[1:]
	}
	body = appendChunk(body, "VP8X", extension(flags|webpEXIF, image.Pt(x, y)))
	for _, c := range chunks {
		body = appendChunk(body, c.id, c.data)
	}
	return riffFile(appendChunk(body, "EXIF", encodeEXIF(texts))), nil
}

// Tags of EXIF texts.
const (
	exifMake  = 0x10f
	exifModel = 0x110
)

// encodeEXIF returns the texts "key:value" as exifTexts reads them.
func encodeEXIF(texts [][2]string) []byte {
	var entries, values []byte
	order := binary.LittleEndian
	start := 8 + 2 + 12*len(texts) + 4
	entry := func(tag int, text [2]string) {
		value := text[0] + ":" + text[1] + "\x00"
		entries = order.AppendUint16(order.AppendUint16(entries, uint16(tag)), 2)
		entries = order.AppendUint32(order.AppendUint32(entries, uint32(len(value))), uint32(start+len(values)))
		if values = append(values, value...); len(values)%2 != 0 {
			values = append(values, 0)
		}
	}
	for i := len(texts) - 1; i > 0; i-- { // tags rise
		entry(exifMake+1-i, texts[i])
	}
	entry(exifModel, texts[0])
	out := order.AppendUint32([]byte("II*\x00"), 8)
	out = append(order.AppendUint16(out, uint16(len(texts))), entries...)
	return append(append(out, 0, 0, 0, 0), values...)
}

// stillWebP decodes a file of one picture. The colours of a lossy one are converted as libwebp does. A file whose
// pixels are cut off is refused first: the decoder allocates what their chunk claims to have.
func stillWebP(data []byte) (image.Image, error) {
	if !slices.ContainsFunc(riffChunks(data[12:]), func(c chunk) bool { return c.id == "VP8 " || c.id == "VP8L" }) {
		return nil, errWebP
	}
	im, err := webp.Decode(bytes.NewReader(data))
	if err != nil {
		return nil, err
	}
	switch p := im.(type) {
	case *image.YCbCr:
		return opaque{videoRGB(p)}, nil
	case *image.NYCbCrA:
		out := videoRGB(&p.YCbCr)
		for y := range out.Rect.Dy() {
			for x := range out.Rect.Dx() {
				out.Pix[y*out.Stride+4*x+3] = p.A[y*p.AStride+x]
			}
		}
		return out, nil
	}
	return im, nil
}

// videoRGB converts the BT.601 values of VP8, which has luma of 16 to 235, to RGB. Chroma is interpolated with weights
// 9, 3, 3 and 1 between its four nearest samples ("fancy upsampling"), all in libwebp's integer arithmetic
// (src/dsp/yuv.h, src/dsp/upsampling.c).
func videoRGB(p *image.YCbCr) *image.NRGBA {
	w, h := p.Rect.Dx(), p.Rect.Dy()
	out := image.NewNRGBA(image.Rect(0, 0, w, h))
	cw, ch := (w+1)/2, (h+1)/2
	// nearest returns the two chroma rows or columns around luma number i, the nearer one first; one at the edges.
	nearest := func(i, n int) (near, far int) {
		near = i / 2
		far = near - 1 + i%2*2
		if far < 0 || far >= n {
			far = near
		}
		return near, far
	}
	for y := range h {
		r0, r1 := nearest(y, ch)
		for x := range w {
			c0, c1 := nearest(x, cw)
			mix := func(plane []byte) int {
				near, over := int(plane[r0*p.CStride+c0]), int(plane[r0*p.CStride+c1])
				under, far := int(plane[r1*p.CStride+c0]), int(plane[r1*p.CStride+c1])
				if c0 == c1 {
					return (3*near + under + 2) >> 2
				}
				return ((near+over+under+far+8+2*(over+under))>>3 + near) >> 1
			}
			luma, u, v := int(p.Y[y*p.YStride+x])*19077>>8, mix(p.Cb), mix(p.Cr)
			copy(out.Pix[y*out.Stride+4*x:], []byte{
				videoByte(luma + v*26149>>8 - 14234), videoByte(luma - u*6419>>8 - v*13320>>8 + 8708),
				videoByte(luma + u*33050>>8 - 17685), 255,
			})
		}
	}
	return out
}

// videoByte rounds a value with 6 bits of fraction down to 0..255.
func videoByte(v int) byte { return byte(min(max(v>>6, 0), 255)) }
