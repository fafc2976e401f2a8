package media

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math"

	"patchbay/node/value"
)

// IsWAV reports whether a file begins as a WAV file does.
func IsWAV(data []byte) bool {
	return len(data) >= 12 && bytes.HasPrefix(data, []byte("RIFF")) && string(data[8:12]) == "WAVE"
}

// ErrCoding is the error for a WAV file whose samples are coded in a way that DecodeWAV does not know.
var ErrCoding = errors.New("samples of another coding")

// DecodeWAV returns the sound of a WAV file of uncompressed samples. Samples that are cut off are left out.
func DecodeWAV(data []byte) (*value.Audio, error) {
	var format []byte
	for rest := data[12:]; len(rest) >= 8; {
		id, n := string(rest[:4]), int64(binary.LittleEndian.Uint32(rest[4:]))
		body := rest[8:min(8+n, int64(len(rest)))]
		switch {
		case id == "fmt ":
			format = body
		case id == "data" && len(format) >= 16:
			return decodePCM(format, body)
		}
		rest = rest[min(8+n+n%2, int64(len(rest))):]
	}
	return nil, errors.New("a WAV file without samples")
}

func decodePCM(format, body []byte) (*value.Audio, error) {
	u16 := binary.LittleEndian.Uint16
	kind, channels, wide := u16(format), int(u16(format[2:])), u16(format[14:])
	hertz := binary.LittleEndian.Uint32(format[4:])
	if kind == 0xfffe && len(format) >= 26 { // the first bytes of the extensible form's identifier
		kind = u16(format[24:])
	}
	read := map[[2]uint16]func([]byte) float32{
		{1, 8}:  func(b []byte) float32 { return (float32(b[0]) - 128) / 128 },
		{1, 16}: func(b []byte) float32 { return float32(int16(u16(b))) / (1 << 15) },
		{1, 24}: func(b []byte) float32 {
			return float32(int32(uint32(b[0])<<8|uint32(b[1])<<16|uint32(b[2])<<24)) / (1 << 31)
		},
		{1, 32}: func(b []byte) float32 { return float32(int32(binary.LittleEndian.Uint32(b))) / (1 << 31) },
		{3, 32}: func(b []byte) float32 { return math.Float32frombits(binary.LittleEndian.Uint32(b)) },
		{3, 64}: func(b []byte) float32 { return float32(math.Float64frombits(binary.LittleEndian.Uint64(b))) },
	}[[2]uint16{kind, wide}]
	if read == nil {
		return nil, ErrCoding
	}
	if channels < 1 || channels > value.MaxChannels || hertz < 1 || hertz > math.MaxInt32 {
		return nil, fmt.Errorf("a sound of %d channels of %d Hz; allowed: 1 to %d channels", channels, hertz,
			value.MaxChannels)
	}
	size := int(wide) / 8
	samples := make([]float32, len(body)/(size*channels)*channels)
	for i := range samples {
		samples[i] = read(body[i*size:])
	}
	if err := value.Finite(samples); err != nil {
		return nil, err
	}
	return planar(samples, channels, int(hertz)), nil
}
