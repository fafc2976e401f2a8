// Package library lists the shared libraries of NVIDIA that the program opens if they exist, what each is for, and
// where they are looked for. It opens nothing: package driver does.
package library

import "fmt"

// Library is a shared library that the program uses if it is found.
type Library struct {
	Name string
	// Files are its file names, each for drivers that support at least CUDA version Driver (1000 * major + 10 * minor).
	// The first one that is found and new enough is used.
	Files []File
	// Wheels are the folders below a Python environment's packages that hold it: CUDA 13 has one for all, CUDA 12 one for
	// each library.
	Wheels  []string
	Version string // its function that returns the version
	Out     bool   // that function is int f(int *version), not size_t f(void)
	Runtime string // its function size_t f(void) that returns the CUDA version it is built for, if names do not tell
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

// CUBLASLt multiplies matrices.
func CUBLASLt() *Library {
	return &Library{
		Name:    "cuBLASLt",
		Files:   []File{{"libcublasLt.so.13", 13000}, {"libcublasLt.so.12", 12000}},
		Wheels:  []string{"nvidia/cu13/lib", "nvidia/cublas/lib"},
		Version: "cublasLtGetVersion",
		Least:   120000,
		Text:    parts, // cublasLt.h, CUBLAS_VERSION
		Use:     "linear layers in bf16",
		Lack:    "linear layers in bf16 run on kernels of this program, slower; how much has not been measured",
		Pip:     "pip install nvidia-cublas-cu12",
	}
}

// CUDNN computes attention.
func CUDNN() *Library {
	return &Library{
		Name:    "cuDNN",
		Files:   []File{{"libcudnn.so.9", 12000}}, // of CUDA 12 and 13 alike
		Wheels:  []string{"nvidia/cudnn/lib"},
		Version: "cudnnGetVersion",
		Runtime: "cudnnGetCudartVersion",
		Least:   91301, // the first with attention as one operation
		Text:    parts, // cudnn_version.h, CUDNN_VERSION
		Use:     "attention in bf16",
		Lack:    "attention in bf16 runs on kernels of this program, slower; how much has not been measured",
		Pip:     "pip install nvidia-cudnn-cu12",
	}
}

// NCCL moves data between GPUs.
func NCCL() *Library {
	return &Library{
		Name:    "NCCL",
		Files:   []File{{"libnccl.so.2", 12000}},
		Wheels:  []string{"nvidia/nccl/lib"},
		Version: "ncclGetVersion",
		Out:     true,
		Least:   21800, // communicators are made with the configuration struct of 2.17, which itself had faults
		Text:    parts, // nccl.h, NCCL_VERSION
		Use:     "exchanges between ranks that have a GPU each",
		Lack:    "ranks copy from each other's memory by themselves (--transport local)",
		Pip:     "pip install nvidia-nccl-cu12",
	}
}

// parts formats a version that is counted like 120805: 12.8.5.
func parts(v int) string { return fmt.Sprintf("%d.%d.%d", v/10000, v/100%100, v%100) }
