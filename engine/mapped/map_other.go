//go:build !unix

package mapped

import (
	"errors"
	"os"
)

// mapFile reports that this system has no mapping, so that Open reads the file.
func mapFile(*os.File, int64) ([]byte, func([]byte) error, error) {
	return nil, nil, errors.ErrUnsupported
}

func dropPages([]byte) {}
