package picture

import "encoding/binary"

// Image is a batch of pictures [B, Y, X, C], f32 in 0..1, C 1 (a mask), 3 (RGB) or 4 (RGBA).
type Image struct {
	B, Y, X, C int
	Data       []float32
}

// Mask is [B, Y, X], f32 in 0..1.
type Mask struct {
	B, Y, X int
	Data    []float32
}

// Bytes turns one picture of a batch into 8-bit pixels: 255*v in f32, clipped and truncated, as ComfyUI does.
func (im *Image) Bytes(item int) []byte {
	n := im.Y * im.X * im.C
	out := make([]byte, n)
	for i, v := range im.Data[item*n : (item+1)*n] {
		out[i] = byte(min(max(255*v, 0), 255)) // NaN stays NaN, and the conversion makes it 0 on amd64 and arm64
	}
	return out
}

// Words turns one picture of a batch into 16-bit pixels, the low byte first: 65535*v in f32, clipped and truncated.
func (im *Image) Words(item int) []byte {
	n := im.Y * im.X * im.C
	out := make([]byte, 0, 2*n)
	for _, v := range im.Data[item*n : (item+1)*n] {
		out = binary.LittleEndian.AppendUint16(out, uint16(min(max(65535*v, 0), 65535)))
	}
	return out
}
