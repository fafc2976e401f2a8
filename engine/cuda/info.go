package cuda

import "fmt"

// Library is the file name of the driver's library.
const Library = "libcuda.so.1"

// LeastVersion is the least CUDA version that a driver must serve, 12.4: it takes the PTX of the kernels from then on.
const LeastVersion = 12040

// LeastMajor is the least compute capability, 8.0: the kernels use asynchronous copies and bf16 tensor cores.
const LeastMajor = 8

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
