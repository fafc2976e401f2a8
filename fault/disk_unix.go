//go:build unix

package fault

import (
	"errors"
	"syscall"
)

// IsDiskFull reports whether an error means that a disk, a quota or the limit on file size is used up.
func IsDiskFull(err error) bool {
	return errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) || errors.Is(err, syscall.EFBIG)
}
