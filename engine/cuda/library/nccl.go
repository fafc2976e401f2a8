package library

import "fmt"

// NCCL moves data between GPUs.
func NCCL() *Library {
	return &Library{
		Name:    "NCCL",
		Files:   []File{{"libnccl.so.2", 12000}},
		Wheels:  []string{"nvidia/nccl/lib"},
		Version: "ncclGetVersion",
		Out:     true,
		Least:   21800, // its communicators are set up by a configuration of the form of 2.17, which had faults
		// nccl.h, NCCL_VERSION
		Text: func(v int) string { return fmt.Sprintf("%d.%d.%d", v/10000, v/100%100, v%100) },
		Use:  "exchanges between ranks that have a GPU each",
		Lack: "ranks copy from each other's memory by themselves (--transport local)",
		Pip:  "pip install nvidia-nccl-cu12",
	}
}
