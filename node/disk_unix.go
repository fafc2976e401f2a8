//go:build unix

package node

import (
	"errors"
	"syscall"
)

// isDiskFull reports whether an error means that a disk or quota is used up.
func isDiskFull(err error) bool {
	return errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT)
}
