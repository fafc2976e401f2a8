package driver

import "fmt"

// Library is the file name of the driver's library.
const Library = "libcuda.so.1"

// Found is the result of looking for a library.
type Found struct {
	Path    string // of the file; empty if none can be used
	Version string
	Err     error // why the best candidate cannot be used, nil if there is no candidate
}

// Location returns the name of the device that the program uses everywhere, e.g. "cuda:0".
func (i *Info) Location() string { return fmt.Sprintf("cuda:%d", i.Index) }

// Info describes a device.
type Info struct {
	Index           int
	Name            string
	Major, Minor    int // compute capability
	Multiprocessors int
	SharedBytes     int   // shared memory a block may have
	Memory          int64 // bytes
}
