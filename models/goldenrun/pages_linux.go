package goldenrun

import "syscall"

// smallPages disables huge pages for memory that a test touches only in part: clearing two megabytes for each took a
// quarter of the time of models/flux. It is only a hint, so errors are ignored.
func smallPages(b []byte) {
	if len(b) > 0 {
		_ = syscall.Madvise(b, syscall.MADV_NOHUGEPAGE)
	}
}
