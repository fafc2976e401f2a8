//go:build !unix

package fault

// IsDiskFull cannot tell on this system: the error keeps its own text.
func IsDiskFull(error) bool { return false }
