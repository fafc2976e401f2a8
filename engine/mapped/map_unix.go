//go:build unix

package mapped

import (
	"errors"
	"math"
	"os"

	"golang.org/x/sys/unix"
)

// mapFile maps size bytes of fd read-only. It returns an error for empty files, which cannot be mapped.
func mapFile(fd *os.File, size int64) ([]byte, func([]byte) error, error) {
	if size <= 0 || size > math.MaxInt {
		return nil, nil, errors.New("size cannot be mapped")
	}
	data, err := unix.Mmap(int(fd.Fd()), 0, int(size), unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		return nil, nil, err
	}
	return data, unix.Munmap, nil
}

// dropPages is advice only: an error changes nothing for the caller.
func dropPages(data []byte) { _ = unix.Madvise(data, unix.MADV_DONTNEED) }
