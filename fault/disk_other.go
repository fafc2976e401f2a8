//go:build !unix

package fault

// IsDiskFull is always false: full disks are not recognized on this system.
func IsDiskFull(error) bool { return false }
