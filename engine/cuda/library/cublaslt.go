package library

import "fmt"

// CUBLASLt multiplies matrices.
func CUBLASLt() *Library {
	return &Library{
		Name:    "cuBLASLt",
		Files:   []File{{"libcublasLt.so.13", 13000}, {"libcublasLt.so.12", 12000}},
		Wheels:  []string{"nvidia/cu13/lib", "nvidia/cublas/lib"},
		Version: "cublasLtGetVersion",
		Least:   120000,
		// 120805 is 12.8.5 and 130100 is 13.1.0: cublasLt.h, CUBLAS_VERSION.
		Text: func(v int) string { return fmt.Sprintf("%d.%d.%d", v/10000, v/100%100, v%100) },
		Use:  "linear layers in bf16",
		Lack: "linear layers in bf16 run on kernels of this program, slower; how much has not been measured",
		Pip:  "pip install nvidia-cublas-cu12",
	}
}
