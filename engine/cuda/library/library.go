// Package library says which shared libraries of NVIDIA the program opens when they are there, what each is for, and
// where they are looked for. It opens nothing: package cuda does.
package library

// Library is a shared library that the program uses where it is found.
type Library struct {
	Name string
	// Files are its file names, each for drivers that serve a CUDA version (1000 * major + 10 * minor) from Driver on.
	// The first one that is found and new enough is used.
	Files []File
	// Wheels are the folders below a Python environment's packages that hold it: CUDA 13 has one for all, CUDA 12 one for
	// each library.
	Wheels  []string
	Version string // its function that tells the version
	Out     bool   // that function is int f(int *version), not size_t f(void)
	Runtime string // its function size_t f(void) that tells the CUDA version it was built for, where names of files do not
	Least   int    // least version, as that function counts
	Text    func(version int) string
	Use     string // what it is for
	Lack    string // what its lack costs
	Pip     string // the command that brings it
}

// File is a name that a library has in one major version.
type File struct {
	Name   string
	Driver int
}

// All lists the libraries.
func All() []*Library { return []*Library{CUBLASLt(), CUDNN(), NCCL()} }
