//go:build !unix

package mapped

import (
	"errors"
	"os"
)

// mapFile always fails, since this system cannot map files, so that Open reads the file.
func mapFile(*os.File, int64) ([]byte, func([]byte) error, error) {
	return nil, nil, errors.ErrUnsupported
}

func dropPages([]byte) {}
