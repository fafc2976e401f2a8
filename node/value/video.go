package value

import (
	"math/big"

	"patchbay/node/picture"
)

// Video is a clip: frames and sound that nodes made, or a file that was loaded, which is read when it is needed.
type Video struct {
	Frames *picture.Image // nil: those of File
	Sound  *Audio         // beside Frames; nil: none
	Rate   *big.Rat       // Frames a second
	Depth  int            // bits of a channel that Frames are encoded with, 8 or 10
	File   *VideoFile     // nil: Frames
}

// VideoFile is the file of a clip: at a path in one of the roots, or its content, if it came with the job.
type VideoFile struct {
	Name string
	Path string // empty: Data
	Data []byte
}

// Bytes returns the host memory of the data that a clip refers to.
func (v *Video) Bytes() int64 {
	n := int64(0)
	if v.Frames != nil {
		n += 4 * int64(len(v.Frames.Data))
	}
	if v.Sound != nil {
		n += 4 * int64(len(v.Sound.Data))
	}
	if v.File != nil {
		n += int64(len(v.File.Data))
	}
	return n
}
