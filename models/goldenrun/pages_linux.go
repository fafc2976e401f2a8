package goldenrun

import "syscall"

// smallPages keeps huge pages out of memory of which a test touches a little: to clear two megabytes for it took a
// quarter of the time of models/flux. It is a hint, so a failure is no matter.
func smallPages(b []byte) {
	if len(b) > 0 {
		_ = syscall.Madvise(b, syscall.MADV_NOHUGEPAGE)
	}
}
