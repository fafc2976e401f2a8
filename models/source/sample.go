package source

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"

	"patchbay/models/weights"
)

// A sample is this many pieces of each file, evenly spread, of this many bytes.
const (
	samplePieces = 64
	sampleBytes  = 32 << 10
)

// Sample hashes a sample of the file or files: SHA-256 in hex. Machines compare samples, as fine-tuned weights have the
// same header as the weights they come from.
func (f File) Sample() (string, error) {
	var paths []string
	err := f.With(func(file *weights.File) error {
		paths = file.Paths()
		return nil
	})
	if err != nil {
		return "", err
	}
	sum := sha256.New()
	piece := make([]byte, sampleBytes)
	for _, path := range paths {
		if err := sampleOf(sum, path, piece); err != nil {
			return "", err
		}
	}
	return hex.EncodeToString(sum.Sum(nil)), nil
}

func sampleOf(sum io.Writer, path string, piece []byte) error {
	r, err := os.Open(path)
	if err != nil {
		return err
	}
	defer func() { _ = r.Close() }()
	info, err := r.Stat()
	if err != nil {
		return err
	}
	_, _ = fmt.Fprintf(sum, "%d\n", info.Size())
	last := max(info.Size()-sampleBytes, 0)
	for i := range int64(samplePieces) {
		n, err := r.ReadAt(piece, last/(samplePieces-1)*i+last%(samplePieces-1)*i/(samplePieces-1))
		if err != nil && !errors.Is(err, io.EOF) {
			return fmt.Errorf("%s: %w", path, err)
		}
		_, _ = sum.Write(piece[:n])
	}
	return nil
}
