package library

import "fmt"

// CUDNN computes attention.
func CUDNN() *Library {
	return &Library{
		Name:    "cuDNN",
		Files:   []File{{"libcudnn.so.9", 12000}}, // of CUDA 12 and 13 alike
		Wheels:  []string{"nvidia/cudnn/lib"},
		Version: "cudnnGetVersion",
		Runtime: "cudnnGetCudartVersion",
		Least:   91301, // the first whose attention is one operation
		// cudnn_version.h, CUDNN_VERSION
		Text: func(v int) string { return fmt.Sprintf("%d.%d.%d", v/10000, v/100%100, v%100) },
		Use:  "attention in bf16",
		Lack: "attention in bf16 runs on kernels of this program, slower; how much has not been measured",
		Pip:  "pip install nvidia-cudnn-cu12",
	}
}
