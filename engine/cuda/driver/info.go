package driver

import "fmt"

// Library is the file name of the driver's library.
const Library = "libcuda.so.1"

// Found is what became of looking for a library.
type Found struct {
	Path    string // of the file; empty where none can be used
	Version string
	Err     error // why the one nearest to use is not used, nil where there is none
}

// Location names a device as the program does everywhere.
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
